"""Decisions: examples of parts of episodes, and the return of episodes that are played."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Arrays
from flax_transformer.data.trajectory import EpisodeWindows, StepRows, make_environment
from flax_transformer.frozen import frozen
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.opened import Context, Opened, check_rows, stream
from flax_transformer.task.spec import Spec
from flax_transformer.text_table import align

LONGEST = 4096
"""Steps of an episode at most: more need a table of more times."""


@dataclass(frozen=True, eq=False)
class HeldPlay:
    """What it takes to play: how steps are laid out, and what returns there were."""

    rows: StepRows
    returns: Any
    """[E], of the training episodes."""


@frozen
class TrajectoryParts:
    """Lay out parts of episodes, from any step on; the model is told the return that was still to come."""

    rows: int = 64
    """Parts a batch."""
    length: int = 20
    """T, steps of each at most."""
    scale: float | None = None
    """What returns are divided by; None: the largest of an episode."""
    condition: bool = True
    """Whether returns are told; without, it is behaviour cloning."""

    def __post_init__(self):
        check_rows(self.rows, self.length)
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def open(self, data: Any, context: Context) -> Opened:
        """Open the episodes; held out is `HeldPlay`.

        Args:
          data: has `open()`, which gives `Episodes` of `train` and `validation`.
        """
        found = data.open()
        train = found["train"]
        longest = max(int((each.ends - each.starts).max()) for each in found.values())
        if longest > LONGEST:
            raise ValueError(f"an episode must have at most {LONGEST} steps, got {longest}")
        for split, each in found.items():
            low, high = each.returns.min(), each.returns.max()
            print(
                f"{split}: {len(each):,} episodes, {len(each.states):,} steps, returns {low:g} to {high:g}, "
                f"mean {each.returns.mean():.1f}", flush=True,
            )  # fmt: skip
        numbers = train.actions.ndim > 1
        kinds = train.actions.shape[1] if numbers else max(1 + max(int(x.actions.max()) for x in found.values()), 2)
        most = np.abs(train.actions).max(0) if numbers else np.zeros(0)
        std = train.states.std(0)
        rows = StepRows(
            length=self.length, kinds=kinds, action_scale=tuple((most + (most == 0)).tolist()),
            mean=tuple(train.states.mean(0).tolist()),
            std=tuple((std + (std == 0)).tolist()), condition=self.condition,
            scale=float(self.scale or abs(train.returns).max() or 1.0),
        )  # fmt: skip
        once = partial(_once, EpisodeWindows(found["validation"], self.length), rows, context.held_rows(self.rows))
        return Opened(
            spec=Spec(uses=("reinforcement-learning",), sizes={"states": train.states.shape[1], "actions": rows.kinds}),
            batches=stream(shuffled(EpisodeWindows(train, self.length), seed=context.seed), rows, self.rows),
            validation=once,
            test=once,
            held=HeldPlay(rows, train.returns),
            fields={
                "state_mean": list(rows.mean),
                "state_std": list(rows.std),
                "return_scale": rows.scale,
                **({"action_scale": list(rows.action_scale)} if numbers else {}),
            },
        )


def _once(windows: EpisodeWindows, rows: StepRows, count: int) -> Iterable[Arrays]:
    return each_once(windows, rows=count, collate=rows)


@frozen
class Rollouts(Evaluator):
    """Play episodes of an environment of gymnasium, and ask for returns; each is from a start of its own."""

    takes: ClassVar[type] = HeldPlay
    metric: ClassVar[str] = "return"

    environment: str = "CartPole-v1"
    episodes: int = 20
    """Of each return that is asked for."""
    asked: tuple[float, ...] = (500.0, 200.0, 50.0)
    """Returns; the first is what the model is good by."""
    temperature: float = 0.7
    """What logits of actions are divided by before one is drawn, as those who played badly did what they did at random;
    0: the most probable is taken. Actions that are numbers are taken as they are said."""

    def __post_init__(self):
        if self.episodes < 1 or not self.asked or self.temperature < 0:
            raise ValueError(
                "there must be an episode, a return to ask for and no negative temperature, got "
                f"{self.episodes}, {self.asked}, {self.temperature}"
            )

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, metrics = finished.opened.held, tested(finished.objective, finished.model, finished.opened.test())
        samples, table = [], []
        for asked in self.asked:
            key = jax.random.key(finished.seed)
            drawn = self.temperature and not held.rows.action_scale
            how = {"key": key, "temperature": self.temperature} if drawn else {}
            got = play(finished.model, held.rows, self.environment, asked, self.episodes, **how)
            metrics |= {f"return_asked_{asked:g}": float(got.mean())}
            said = ", ".join(f"{value:g}" for value in got)
            samples.append({"source": f"asked for a return of {asked:g}", "hypothesis": said})
            table.append((f"{asked:g}", f"{got.mean():.1f}", f"{got.std():.1f}", f"{got.min():g}", f"{got.max():g}"))
        metrics["return"] = metrics[f"return_asked_{self.asked[0]:g}"]
        mean = float(np.mean(held.returns))
        head = ("return asked for", "mean of got", "deviation", "least", "most")
        line = f"{self.episodes} episodes each; those it learned from have a mean return of {mean:.1f}"
        return Shown(metrics=metrics, samples=samples, lines=("", align([head, *table], "rrrrr"), "", line))


def play(
    model: Any,
    rows: StepRows,
    environment: str,
    asked: float,
    episodes: int,
    *,
    key: PRNGKeyArray | None = None,
    temperature: float = 1.0,
) -> Float[np.ndarray, " E"]:
    """Play episodes side by side, each from a seed of its own, and give their returns.

    Args:
      model: says `output(hidden).actions`; it sees the last T steps.
      rows: how steps are laid out.
      asked: the return to begin with, of which what is gained is taken away.
      key: for kinds of actions to be drawn by their probabilities; None takes the most probable, and actions that are
        numbers as they are said, within what the environment takes.
      temperature: what logits are divided by before.
    """
    T, S, heat = rows.length, len(rows.mean), np.float32(temperature)
    made = [make_environment(environment) for _ in range(episodes)]
    first = np.stack([each.reset(seed=90_001 + i)[0] for i, each in enumerate(made)])
    room = 1 + max(each.spec.max_episode_steps or 1000 for each in made)
    states, actions = np.zeros((episodes, room, S), np.float32), np.zeros((episodes, room, rows.kinds), np.float32)
    returns, total, over = np.zeros((episodes, room, 1), np.float32), np.zeros(episodes), np.zeros(episodes, bool)
    states[:, 0] = (first - rows.mean) / rows.std
    for t in range(room - 1):
        returns[:, t, 0] = (asked - total) / rows.scale if rows.condition else 0
        begin = max(t + 1 - T, 0)
        part = slice(begin, begin + T)
        times = np.tile(np.arange(begin, begin + T, dtype=np.int32), (episodes, 1))
        pad = T - states[:, part].shape[1]
        window = [np.pad(x[:, part], ((0, 0), (0, pad), (0, 0))) for x in (states, actions, returns)]
        own = None if key is None else jax.random.fold_in(key, t)
        said = np.asarray(_choose(model, *window, times, t - begin, heat, own, kinds=not rows.action_scale))
        actions[~over, t] = said[~over]
        for i in np.flatnonzero(~over):
            state, reward, ended, cut, _ = made[i].step(_environment_action(made[i], said[i], rows))
            total[i] += reward
            over[i] = ended or cut
            states[i, t + 1] = (state - rows.mean) / rows.std
        if over.all():
            break
    for each in made:
        each.close()
    return total


def _environment_action(environment: Any, said: np.ndarray, rows: StepRows) -> Any:
    """Return an action as an environment takes it."""
    if not rows.action_scale:
        return int(said.argmax())
    space = environment.action_space
    return np.clip(said * np.array(rows.action_scale), space.low, space.high).astype(space.dtype)


@partial(jax.jit, static_argnames="kinds")
def _choose(
    model: Any,
    states: Array,
    actions: Array,
    returns: Array,
    times: Array,
    place: Array,
    heat: Array,
    key: PRNGKeyArray | None,
    *,
    kinds: bool,
) -> Float[Array, "E A"]:
    """Return the action of the step at a place, one-hot if it is a kind; what comes after it is not seen."""
    hidden = model.hidden_states(states=states, actions=actions, returns=returns, times=times)
    said = model.output(hidden).actions[:, place]
    if not kinds:
        return said
    chosen = said.argmax(-1) if key is None else jax.random.categorical(key, said / heat)
    return jax.nn.one_hot(chosen, said.shape[-1])
