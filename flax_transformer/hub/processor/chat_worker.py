"""Renders chat templates: run as a script by `chat`, a request a line on standard input, an answer a line back.

A template is a program by a stranger. Here it is in Jinja's sandbox, and in a process that has little memory, little
time and no way to write files or to begin other processes; what goes wrong ends this process and no other. It imports
nothing of this package, to begin within a tenth of a second.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2.ext
import jinja2.sandbox

SECONDS = 1
"""Of computing that one conversation may take."""
MEMORY = 512 * 2**20
"""Bytes of addresses that this process may have."""
LONGEST = 2**23
"""Characters that a conversation may become."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: notes where in the text an assistant speaks."""

    tags = frozenset({"generation"})
    so_far: Callable[[], int] = staticmethod(lambda: 0)
    spans: list[tuple[int, int]] = []  # noqa: RUF012 -- one conversation is rendered at a time

    def parse(self, parser: Any) -> Any:
        """Read a block, which calls `_note` with what is in it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text, begin = caller(), self.so_far()
        self.spans.append((begin, begin + len(text)))
        return text


class Dict:
    """What `dict` is in a template: makes dictionaries, and has no class to climb from."""

    def __call__(self, *items: Any, **named: Any) -> dict:
        """Make a dictionary."""
        return dict(*items, **named)

    def fromkeys(self, *items: Any) -> dict:
        """Make a dictionary of keys."""
        return dict.fromkeys(*items)


class Namespace(jinja2.utils.Namespace):
    """What `namespace` is in a template: holds what loops change, under names without an underscore before them."""

    def __init__(*given: Any, **named: Any) -> None:
        self, *items = given
        values = dict(*items, **named)
        for name in values:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no names that begin with _, got {name}")


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=8)
def compiled(template: str) -> jinja2.Template:
    """Make a template as `transformers` does: the same options, filters and functions."""
    room = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    room.filters["tojson"] = _tojson
    room.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": Dict(),
        "namespace": Namespace,
    }
    return room.from_string(template)


def render(template: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Return the text of a conversation, and the spans in it that an assistant speaks.

    Raises:
        ValueError: a text without end.
    """
    pieces: list[str] = []
    size = 0
    GenerationTag.spans, GenerationTag.so_far = [], staticmethod(lambda: size)
    for piece in compiled(template).generate(**variables):
        pieces.append(piece)
        size += len(piece)
        if size > LONGEST:
            raise ValueError(f"it writes more than {LONGEST:,} characters")
    return {"text": "".join(pieces), "spans": GenerationTag.spans}


def answers(requests: Iterator[str]) -> Iterator[str]:
    """Answer each request; each has its own time, after which the process ends."""
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            answer = render(**json.loads(line))
        except MemoryError:
            answer = {"error": "it needs too much memory"}
        except RecursionError:
            answer = {"error": "it calls itself without end"}
        except Exception as error:
            answer = {"error": str(error)[:1000] or type(error).__name__}
        yield json.dumps(answer)
        signal.setitimer(signal.ITIMER_PROF, 0)


def confine() -> None:
    """Drop what no template needs: memory, writing files, making processes."""
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, also within one long step
    confine()
    for text in answers(iter(sys.stdin.readline, "")):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    os._exit(0)
