"""Episodes: returns still to come, parts of them laid out, files of arrays read or refused."""

import numpy as np
import pytest

from flax_transformer.data.trajectory import (
    DecisionData,
    EpisodeData,
    Episodes,
    EpisodeWindows,
    PlayedEpisodes,
    StepRows,
    read_episodes,
)
from flax_transformer.data.trajectory.episode import split_episodes


def episodes(lengths=(3, 1, 4), seed=0):
    random, count = np.random.default_rng(seed), sum(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    actions = random.integers(3, size=count).astype(np.int32)
    return Episodes(random.normal(size=(count, 2)).astype(np.float32), actions, random.normal(size=count), starts)


def test_returns_to_go_are_sums_to_the_end_of_the_episode():
    found = episodes()
    bounds = zip(found.starts, found.ends, strict=True)
    expected = [found.rewards[i:end].sum() for start, end in bounds for i in range(start, end)]
    np.testing.assert_allclose(found.to_go, expected, atol=1e-12)
    np.testing.assert_allclose(found.returns, found.to_go[found.starts], atol=1e-12)


def test_parts_do_not_reach_into_the_next_episode():
    found = episodes()
    windows = EpisodeWindows(found, 3)
    assert [len(each["actions"]) for each in windows] == [3, 2, 1, 1, 3, 3, 2, 1]
    assert [each["times"][0] for each in windows] == [0, 1, 2, 0, 0, 1, 2, 3]
    np.testing.assert_array_equal(windows[5]["states"], found.states[5:8])


@pytest.mark.parametrize("condition", [True, False])
def test_steps_are_laid_out_with_what_came_after_them(condition):
    found = episodes()
    rows = StepRows(length=3, kinds=3, mean=(1.0, 2.0), std=(0.5, 4.0), scale=10.0, condition=condition)
    batch = rows([EpisodeWindows(found, 3)[6], None])
    inputs = batch["inputs"]
    np.testing.assert_allclose(inputs["states"][0, :2] * (0.5, 4.0) + (1.0, 2.0), found.states[6:8], rtol=1e-6)
    np.testing.assert_allclose(inputs["returns"][0, :2, 0] * 10, found.to_go[6:8] * condition, rtol=1e-6)
    assert batch["weights"].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert (
        inputs["actions"][0].argmax(-1)[:2].tolist() == batch["labels"][0, :2].tolist() == found.actions[6:8].tolist()
    )
    assert inputs["actions"][0].sum(-1).tolist() == [1, 1, 0]


def test_whole_episodes_are_held_out():
    found = episodes(lengths=tuple(range(1, 11)))
    parts = split_episodes(found, 0.3, seed=1)
    lengths = np.concatenate([each.ends - each.starts for each in parts.values()])
    assert sorted(lengths) == list(range(1, 11))
    assert len(parts["validation"]) == 3
    with pytest.raises(ValueError, match=r"holdout must be in \(0, 1\) of at least 2 episodes, got 1.0 of 10"):
        split_episodes(found, 1.0, seed=1)


@pytest.mark.parametrize("ends", [False, True])
def test_a_file_of_arrays_is_read(tmp_path, ends):
    found = episodes()
    marks = np.isin(np.arange(8), found.starts)
    said = {"terminals": np.append(marks[1:], True)} if ends else {"episode_starts": marks}
    arrays = {"obs": found.states, "actions": found.actions[:, None], "rewards": found.rewards, **said}
    np.savez(tmp_path / "some.npz", **arrays)
    for root in (tmp_path, tmp_path / "some.npz"):
        again = read_episodes(root)
        for name in ("states", "actions", "rewards", "starts"):
            np.testing.assert_allclose(getattr(again, name), getattr(found, name))
    assert len(EpisodeData(root=str(tmp_path), holdout=0.4).open()["train"]) == 2


GOOD = {"obs": np.zeros((4, 2)), "actions": np.zeros(4, int), "rewards": np.ones(4), "episode_starts": np.eye(4)[0]}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"obs": None}, "it must have states or obs or observations, it has actions, rewards, episode_starts"),
        ({"actions": np.zeros(4, bool)}, "actions must be floats, or numbers of their kinds, from 0 on, got bool"),
        ({"actions": np.full(4, -1)}, "actions must be floats, or numbers of their kinds, from 0 on"),
        ({"actions": np.full((4, 2), np.inf)}, "states, actions and rewards must be finite numbers"),
        ({"actions": np.zeros((4, 2), int)}, r"actions \[N\] of kinds or \[N, A\] of numbers"),
        (
            {"rewards": np.ones(3)},
            r"states must be \[N, S\], .*, rewards \[N\], got \(4, 2\), \(4,\) and \(3,\)",
        ),
        ({"obs": np.full((4, 2), np.nan)}, "states, actions and rewards must be finite numbers"),
        ({"episode_starts": np.eye(4)[1]}, "episodes must begin with the first of 4 steps"),
        ({"obs": np.array([{}] * 4)}, "pickle"),
    ],
)
def test_a_bad_file_is_named(tmp_path, change, rule):
    np.savez(tmp_path / "bad.npz", **{name: value for name, value in {**GOOD, **change}.items() if value is not None})
    with pytest.raises(ValueError, match=rule) as error:
        read_episodes(tmp_path)
    assert "bad.npz" in str(error.value)


def test_what_is_no_file_of_episodes_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a file of episodes"):
        read_episodes(tmp_path / "none.npz")
    with pytest.raises(ValueError, match=r"must have one file of episodes \(\.npz\), got 0"):
        read_episodes(tmp_path)
    (tmp_path / "text.npz").write_text("no arrays")
    with pytest.raises(ValueError, match=r"text\.npz"):
        read_episodes(tmp_path)


def test_players_are_good_and_bad_and_the_same_again():
    pytest.importorskip("gymnasium")
    first, again = (PlayedEpisodes(count=12).play() for _ in range(2))
    assert first.fingerprint == again.fingerprint
    assert first.returns.min() < 100 < first.returns.max()
    with pytest.raises(ValueError, match="Nowhere-v0 must be an environment of gymnasium"):
        PlayedEpisodes(environment="Nowhere-v0").play()
    with pytest.raises(ValueError, match="actions must be of a few kinds, those of Pendulum-v1 are Box"):
        DecisionData(played=PlayedEpisodes(environment="Pendulum-v1")).open()
