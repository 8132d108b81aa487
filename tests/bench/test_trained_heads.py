"""Heads of a trained model, on which variants are compared with exact attention."""

from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.bench.heads import heads_of
from flax_transformer.ops import Mask, attention_weights

GOLDEN = Path(__file__).parent.parent / "hub/golden"
TOKENS = np.array([[5, 6, 7, 8, 9, 4]])


@pytest.mark.rotates
def test_heads_are_those_that_the_model_multiplies():
    pretrained = hub.load(GOLDEN / "gpt2")
    q, k, _ = heads_of(pretrained, TOKENS[0])
    seen = pretrained(input_ids=TOKENS, output_attentions=True).attentions
    np.testing.assert_allclose(attention_weights(q, k, Mask(causal=True)), np.stack([w[0] for w in seen]), atol=1e-5)


def test_a_model_of_two_stacks_has_none_to_give():
    with pytest.raises(ValueError, match=r"one stack of blocks whose .*, got 2 stacks"):
        heads_of(hub.load(GOLDEN / "bart"), TOKENS[0])
