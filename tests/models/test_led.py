"""LED: published sizes, windows and global tokens of its source, and decoding."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.led import led_base_16384
from flax_transformer.nn import with_fields
from flax_transformer.train.state import parameter_count
from tests.models.decoding import V, neither_future_nor_padding_is_seen, steps_equal_the_whole

PUBLISHED = {"led_base_16384": 161_844_480, "led_large_16384": 459_801_600}
"""What the model cards of allenai/led-… count."""


@pytest.fixture(scope="module")
def model():
    sizes = {"embed": 12, "heads": 3, "inner": 20, "max_length": 32, "depth": 2, "windows": (4, 2)}
    config = with_fields(led_base_16384(V, dropout=0.0), **sizes, init_std=0.3)
    return Seq2Seq(config, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    assert parameter_count(abstract(find_preset(name)())) == PUBLISHED[name]


def moved(model, at, **inputs):
    """Say which states of the source change when the token at one position does."""
    tokens = jnp.arange(20)[None] % 17 + 3
    before, after = (model.encode({"tokens": each, **inputs}) for each in (tokens, tokens.at[0, at].set(30)))
    return np.flatnonzero(np.abs(after - before)[0].max(-1) > 1e-6).tolist()


@pytest.mark.rotates
def test_tokens_see_windows_and_global_ones_see_all(model):
    """Two layers see two and one to either side."""
    assert moved(model, 10) == [7, 8, 9, 10, 11, 12, 13]
    first = {"global_positions": jnp.array([0])}
    assert moved(model, 0, **first) == list(range(20))
    assert moved(model, 10, **first) == list(range(20))
    leading = Seq2Seq(replace(model.cfg, encoder=replace(model.cfg.encoder, leading=1)), rngs=nnx.Rngs(0))
    assert moved(leading, 0) == list(range(20))
    with pytest.raises(ValueError, match=r"must be positions of the text, in \[0, 20\), or -1 for none, got 20"):
        moved(model, 0, global_positions=jnp.array([20]))


@pytest.mark.rotates
def test_steps_equal_the_whole(model):
    steps_equal_the_whole(model.for_decoding(), beams=3)


@pytest.mark.slow
def test_neither_future_nor_padding_is_seen(model):
    neither_future_nor_padding_is_seen(model)
