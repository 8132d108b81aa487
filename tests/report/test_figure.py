"""The figure shows the weights it was given, under the tokens they are between."""

import numpy as np
import pytest
from PIL import Image

from flax_transformer.report import AttentionMaps, attention_figure, save_attention

ROWS, COLUMNS = ("ein", "$Hund", "犬", "</s>"), ("a", "·dog$", "_", "", "</s>")


def maps(heads=6):
    weights = np.random.default_rng(0).random((2, heads, 4, 5)).astype(np.float32)
    return AttentionMaps("cross", weights / weights.sum(-1, keepdims=True), ROWS, COLUMNS)


@pytest.mark.rotates
@pytest.mark.parametrize("layer", [0, 1, -1, -2])
@pytest.mark.parametrize("heads", [1, 4, 6])
def test_every_head_of_the_layer_is_drawn(layer, heads):
    given = maps(heads)
    figure = attention_figure(given, layer=layer)
    drawn = [axes for axes in figure.axes if axes.get_title().startswith("head")]
    assert [axes.get_title() for axes in drawn] == [f"head {n + 1}" for n in range(heads)]
    assert figure.get_suptitle() == f"cross-attention, layer {layer % 2 + 1} of 2"
    for n, axes in enumerate(drawn):
        np.testing.assert_array_equal(axes.images[0].get_array(), given.weights[layer, n])
        assert axes.images[0].get_clim() == (0, given.weights[layer].max())
        assert tuple(text.get_text() for text in axes.get_yticklabels()) == ROWS
        assert tuple(text.get_text() for text in axes.get_xticklabels()) == COLUMNS


def test_flat_heads_are_said_to_be_flat():
    """Also causal ones, which give each query's own tokens alike."""
    causal = np.tril(np.ones((4, 5), np.float32))
    weights = np.stack([causal / causal.sum(-1, keepdims=True), np.full((4, 5), 0.2), maps().weights[0, 0]])[None]
    figure = attention_figure(AttentionMaps("encoder self", weights.astype(np.float32), ROWS, COLUMNS))
    assert [axes.get_title() for axes in figure.axes[:3]] == ["head 1 (flat)", "head 2 (flat)", "head 3"]
    assert figure.get_suptitle() == "encoder self-attention, layer 1 of 1"


@pytest.mark.rotates
def test_any_token_can_be_written(tmp_path):
    save_attention(maps(), tmp_path / "cross.png")
    with Image.open(tmp_path / "cross.png") as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50


@pytest.mark.parametrize("layer", [2, -3])
def test_a_layer_that_is_not_there_is_refused(layer):
    with pytest.raises(ValueError, match=rf"layer must be between 0 and 1, or count from the end, got {layer}"):
        attention_figure(maps(), layer=layer)


@pytest.mark.parametrize("shape", [(2, 6, 4, 4), (2, 6, 3, 5)])
def test_every_row_and_column_needs_a_token(shape):
    with pytest.raises(ValueError, match="with a token for each row and column, got"):
        AttentionMaps("cross", np.zeros(shape, np.float32), ROWS, COLUMNS)
