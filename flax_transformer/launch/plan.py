"""A launch before it happens: files, and commands in their order, as data."""

import shlex
import shutil

from flax_transformer.frozen import frozen

Command = tuple[str, ...]


@frozen
class LaunchStep:
    """One command and when it is done.

    A plain step runs its command. With `unless`, it does so only where that other command fails. With `ends`, it asks
    its command for a word again and again until the word is one of them, and runs `meanwhile` in between.
    """

    command: Command
    unless: Command = ()
    makes: bool = False
    """Whether it makes something that costs and that can be deleted."""
    ends: tuple[str, ...] = ()
    """Words to wait for; the first is the good one."""
    meanwhile: Command = ()
    pause: int = 30
    """Seconds between two questions."""

    def __str__(self) -> str:
        command = shlex.join(self.command)
        if self.unless:
            return f"{shlex.join(self.unless)} || {command}"
        if self.ends:
            body = f"{shlex.join(self.meanwhile)}; sleep {self.pause}" if self.meanwhile else f"sleep {self.pause}"
            return f"until {command} | grep -qxE {shlex.quote('|'.join(self.ends))}; do {body}; done"
        return command


@frozen
class Tool:
    """A program that launches."""

    name: str
    install: str
    """The command that installs it."""
    gone: str
    """What it says, in any case of letters, when it is asked about a thing that does not exist."""


@frozen
class LaunchPlan:
    """All that a launch does."""

    tool: Tool
    steps: tuple[LaunchStep, ...]
    """May be carried out again at any time: what is there is not made twice, what runs is watched."""
    again: tuple[LaunchStep, ...] = ()
    """In place of `steps` where a launch of this name is under way; the same by default."""
    delete: tuple[Command, ...]
    """Delete all that `steps` make."""
    state: Command = ()
    """Prints the state of what was made."""
    lost: tuple[str, ...] = ()
    """States in which the machines were taken away, so that it must be deleted and made again."""
    ended: tuple[int, ...] = ()
    """Exit codes of a step that say that nothing is left of what was made."""
    over: tuple[str, ...] = ()
    """States in which it has ended, so that it must be deleted before the next launch."""
    files: tuple[tuple[str, str], ...] = ()
    """Text files that the commands read: path and content."""
    scripts: tuple[tuple[str, str], ...] = ()
    """The same, but alike in all launches, so that they are not shown."""


class Missing(RuntimeError):
    """A program that is needed is not installed."""


def check_tool(tool: Tool) -> None:
    """Make sure that a program is there.

    Raises:
      Missing: when it is not; says how to install it.
    """
    if shutil.which(tool.name) is None:
        raise Missing(f"{tool.name} is not installed; install it with: {tool.install}")


def render_commands(commands: tuple[Command, ...]) -> str:
    """Write commands as lines to paste into a shell."""
    return "".join(f"{shlex.join(command)}\n" for command in commands)


def render(plan: LaunchPlan) -> str:
    """Write a plan as lines to paste into a shell.

    >>> steps = LaunchStep(command=("echo", "a b")), LaunchStep(command=("state",), ends=("UP", "LOST"))
    >>> print(render(LaunchPlan(tool=Tool(name="echo", install="", gone=""), steps=steps, delete=())), end="")
    echo 'a b'
    until state | grep -qxE 'UP|LOST'; do sleep 30; done
    """
    files = (f"cat > {shlex.quote(path)} <<'{END}'\n{content.rstrip()}\n{END}\n" for path, content in plan.files)
    return "".join([*files, *(f"{step}\n" for step in plan.steps)])


END = "END_OF_FILE"
"""Marks the end of a file in a rendered plan; no file that is sent has such a line."""
