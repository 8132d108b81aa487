"""The option --trust, of all commands that read runs: whether a run's own Python files may be imported."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import tyro

Trust = Annotated[
    bool,
    tyro.conf.arg(
        help="Import the Python file that a run of an experiment of your own was made by, which runs it; without it, "
        "a terminal asks, and anything else is answered with the file's name."
    ),
]


def reads_runs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --trust to a command."""

    @functools.wraps(command)
    def run(*arguments: Any, trust: bool = False, **options: Any) -> Any:
        from flax_transformer.train.own_code import permitting

        permission = _Permission(given=trust)
        try:
            with permitting(permission):
                result = command(*arguments, **options)
        except SystemExit:  # some of what was asked for could not be read; the rest is done
            permission.tell()
            raise
        permission.tell()
        return result

    signature = inspect.signature(command)
    option = inspect.Parameter("trust", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Trust)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])
    del run.__wrapped__  # whose options tyro would explain, and not this one
    run.__annotations__ = {**command.__annotations__, "trust": Trust}
    return run


class _Permission:
    """What is permitted of a run's own files: all by --trust, else what a person at a terminal agrees to."""

    def __init__(self, *, given: bool):
        self.given = given
        self.answers: dict[Any, bool] = {}

    def __call__(self, request: Any) -> bool:
        if request not in self.answers:
            self.answers[request] = self.given or self._ask(request)
            if self.given and request.changed:
                print(f"note: {request}", file=sys.stderr, flush=True)
        return self.answers[request]

    def tell(self) -> None:
        """Write on standard error what a command has done without."""
        for request in (each for each, permitted in self.answers.items() if not permitted):
            print(f"note: {request}: add --trust to permit that; this is done without", file=sys.stderr)

    @staticmethod
    def _ask(request: Any) -> bool:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        print(f"{request}. Import it? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
