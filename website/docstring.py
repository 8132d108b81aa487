"""The dialect of our docstrings, in the words of the Markdown and of the Google style that the site's tools read."""

import re

_TYPED = r"^[ \t]*>>> .*\n?(?:^[ \t]*\S.*\n?)*"
_DOCTEST = re.compile(rf"{_TYPED}(?:\n*{_TYPED})*", re.MULTILINE)
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_SEVERAL = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+): (?P<meaning>.*(?:\n(?P=indent)[ ]+.*)*)", re.MULTILINE)


def rendered(text: str, names: dict[str, str]) -> str:
    """Write a docstring in the dialect of the site's tools; `names` are its function's parameters, stars and all."""
    return axes(arguments(examples(text), names))


def axes(text: str) -> str:
    """Keep the star of "any axes before", which Markdown would take for the beginning of something emphasised.

    >>> axes("From [*B, T] to [*B, D], as in `[*B, T]`.")
    'From [\\\\*B, T] to [\\\\*B, D], as in `[*B, T]`.'
    """
    parts = _CODE.split(text)
    return "".join(part if place % 2 else part.replace("[*", "[\\*") for place, part in enumerate(parts))


def examples(text: str) -> str:
    """Fence what a docstring types into Python, which Markdown takes for quotations.

    >>> examples("Add.\\n\\n>>> 1 + 1\\n2")
    'Add.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip("\n")


def arguments(text: str, names: dict[str, str]) -> str:
    """Give each of several arguments that are described together a line, under the name that their function has for it.

    >>> print(arguments("Args:\\n  args, key: given on.", {"args": "*args"}))
    Args:
      *args: given on.
      key: given on.
    """

    def each(found: re.Match) -> str:
        return "\n".join(
            f"{found['indent']}{names.get(name, name)}: {found['meaning']}" for name in found["names"].split(", ")
        )

    head, args, rest = text.partition("Args:\n")
    section, empty, rest = rest.partition("\n\n")
    return head + args + _SEVERAL.sub(each, section) + empty + rest
