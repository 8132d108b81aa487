"""Models that choose actions, at work: the returns they get where they are asked for some.

Axes: E episodes, T steps, S numbers of a state, A kinds of actions.
"""

from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.data.trajectory import StepRows, make_environment
from flax_transformer.frozen import frozen
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.text_table import align


@frozen
class Rollouts(Evaluator):
    """Play episodes of an environment of gymnasium, and ask for returns; each is from a start of its own."""

    metric: ClassVar[str] = "return"

    environment: str = "CartPole-v1"
    episodes: int = 20
    """Of each return that is asked for."""
    asked: tuple[float, ...] = (500.0, 200.0, 50.0)
    """Returns; the first is what the model is good by."""
    temperature: float = 0.7
    """What logits of actions are divided by before one is drawn, as those who played badly did what they did at random;
    0: the most probable is taken."""

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
            how = {"key": key, "temperature": self.temperature} if self.temperature else {}
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
      key: for actions to be drawn by their probabilities; None takes the most probable.
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
        chosen = np.asarray(_choose(model, *window, times, t - begin, heat, own))
        for i in np.flatnonzero(~over):
            state, reward, ended, cut, _ = made[i].step(int(chosen[i]))
            actions[i, t, chosen[i]] = 1
            total[i] += reward
            over[i] = ended or cut
            states[i, t + 1] = (state - rows.mean) / rows.std
        if over.all():
            break
    for each in made:
        each.close()
    return total


@jax.jit
def _choose(
    model: Any,
    states: Array,
    actions: Array,
    returns: Array,
    times: Array,
    place: Array,
    heat: Array,
    key: PRNGKeyArray | None,
) -> Int[Array, " E"]:
    """Return the action of the step at a place; what comes after it is not seen."""
    hidden = model.hidden_states(states=states, actions=actions, returns=returns, times=times)
    logits = model.output(hidden).actions[:, place]
    return logits.argmax(-1) if key is None else jax.random.categorical(key, logits / heat)
