"""Shows the fields of configs: a class that is `frozen` is read as the dataclass that it is.

Its fields, inherited ones too, become the parameters of the class, each with the string below it, type and default.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from griffe import (
    AliasResolutionError,
    Class,
    CyclicAliasError,
    DataclassesExtension,
    Decorator,
    ExprCall,
    ExprKeyword,
    ExprName,
    Function,
    Module,
    Object,
    ParameterKind,
)

from website import docstring

FROZEN = "flax_transformer.frozen.frozen"
DATACLASS = ExprCall(ExprName("dataclasses.dataclass"), [ExprKeyword("kw_only", "True")])
STARS = {ParameterKind.var_positional: "*", ParameterKind.var_keyword: "**"}


class Fields(DataclassesExtension):
    """Reads `frozen` classes as dataclasses, and writes every docstring in the dialect of the site's tools."""

    def on_package(self, *, pkg: Module, **options: Any) -> None:
        """Change the package, once all of it is known."""
        everything = list(within(pkg))
        for each in everything:
            translate(each)
            resolve(each)
        found = (each for each in everything if isinstance(each, Class))
        configs = [each for each in found if FROZEN in {decorator.callable_path for decorator in each.decorators}]
        for config in configs:
            config.decorators = [Decorator(DATACLASS, lineno=config.lineno, endlineno=config.lineno)]
        super().on_package(pkg=pkg, **options)
        for config in configs:
            describe(config)


def within(place: Object) -> Iterator[Object]:
    """List what is in a module or a class, at any depth, and itself."""
    yield place
    for member in place.members.values():
        if not member.is_alias:
            yield from within(member)


def resolve(place: Object) -> None:
    """Note under which other names a module has something of ours, so that they lead to it too."""
    for member in place.members.values():
        if member.is_alias and member.target_path.startswith("flax_transformer."):
            with suppress(AliasResolutionError, CyclicAliasError):
                member.resolve_target()


def translate(each: Object) -> None:
    """Write a docstring in the dialect of the site's tools."""
    if each.docstring is not None:
        parameters = each.parameters if isinstance(each, Function | Class) else ()
        names = {parameter.name.lstrip("*"): STARS.get(parameter.kind, "") + parameter.name for parameter in parameters}
        each.docstring.value = docstring.rendered(each.docstring.value, names)


def describe(config: Class) -> None:
    """Write the fields below the docstring of a config, as arguments, and hide them as attributes."""
    fields = [parameter for parameter in config.parameters if parameter.name != "self"]
    if not (fields and config.docstring):
        return
    lines = [f"  {field.name}: {meaning(field)}" for field in fields]
    config.docstring.value = "\n".join([config.docstring.value, "", "Args:", *lines])
    for field in fields:
        if field.name in config.members:
            config.members[field.name].public = False


def meaning(field: Any) -> str:
    """Return the string below a field on one line; of a field without one, what its type is."""
    if field.docstring is not None:
        return " ".join(field.docstring.value.split())
    return f"A `{field.annotation}`."
