"""What follows a prompt that was read once is what follows it where it is read each time, in every row and way."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.bench import Compilations
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import Rotary, with_fields
from tests.models.test_causal import CONFIGS

pytestmark = pytest.mark.proves("generation", "a prompt read once for many continuations")

V = 31


@pytest.fixture(scope="module", params=["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def ours(request):
    if request.param == "gpt2":
        name, config = "GPT2LMHeadModel", gpt2_tiny(vocab=V)
    else:
        name = "LlamaForCausalLM"
        config = with_fields(CONFIGS["llama"], qk_norm=None, rotary=Rotary(base=50.0))
    model = jax.jit(lambda: Causal(config, rngs=nnx.Rngs(0)))()
    return hub.wrap(jax.tree.map(lambda x: 3 * x, model), name, eos_token_id=2, pad_token_id=3)


PROMPT = np.random.default_rng(0).integers(4, V, 9)
RESTS = [[5, 6, 7], [8], [9, 4]]
MASK = np.arange(12) >= np.array([[0], [2], [1]])
IDS = np.stack([np.pad(np.concatenate([PROMPT, rest]), (12 - 9 - len(rest), 0), constant_values=3) for rest in RESTS])
WAYS = {
    "greedy": {}, "beams": {"num_beams": 3, "num_return_sequences": 2},
    "drawn": {"do_sample": True, "key": jax.random.key(1), "num_return_sequences": 2},
    "rules": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.2},
    "lookup": {"prompt_lookup_num_tokens": 3},
}  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_of_the_whole_prompt(ours, way):
    past, options = hub.read_prompt(ours, PROMPT), {"max_new_tokens": 9, **WAYS[way]}
    for rows in (slice(0, 3), slice(1, 2)):
        want = np.asarray(ours.generate(IDS[rows], MASK[rows], **options))
        np.testing.assert_array_equal(ours.generate(IDS[rows], MASK[rows], past=past, **options), want)


def windowed():
    config = with_fields(CONFIGS["llama"], qk_norm=None, rotary=Rotary(base=50.0), window=4)
    model = jax.jit(lambda: Causal(config, rngs=nnx.Rngs(0)))()
    return hub.wrap(jax.tree.map(lambda x: 3 * x, model), "MistralForCausalLM", eos_token_id=2, pad_token_id=3)


def with_slopes():
    return hub.load(Path(__file__).parent / "golden" / "falcon_alibi")


@pytest.mark.rotates
@pytest.mark.parametrize("make", [windowed, with_slopes])
def test_distances_do_not_count_padding(make):
    """Which rows of one length have none of; of several it would lie within them."""
    ours = make()
    past, ids = hub.read_prompt(ours, PROMPT), np.stack([np.append(PROMPT, rest) for rest in ([5, 6, 7], [8, 4, 9])])
    want = ours.generate(ids, max_new_tokens=9)
    np.testing.assert_array_equal(ours.generate(ids, past=past, max_new_tokens=9), want)
    with pytest.raises(ValueError, match=r"must be of one length where attention has windows .*, got \[3, 1, 2\]"):
        ours.generate(IDS, MASK, past=past)


@pytest.mark.rotates
def test_other_rows_and_prompts_share_a_program(ours):
    ours.generate(IDS, MASK, past=hub.read_prompt(ours, PROMPT), max_new_tokens=5)
    with Compilations() as fresh:
        past = hub.read_prompt(ours, PROMPT[:7])
        ours.generate(IDS[:, :10], MASK[:, :10], past=past, max_new_tokens=6)
    assert fresh.count == 0


def test_what_cannot_be_is_named(ours):
    past = hub.read_prompt(ours, PROMPT)
    with pytest.raises(ValueError, match="each row begins with the 9 tokens of past and has others after them, row 1"):
        ours.generate(np.where(np.arange(3)[:, None] == 1, 7, IDS), MASK, past=past)
    with pytest.raises(ValueError, match="has others after them, row 0 does not"):
        ours.generate(PROMPT[None], past=past)
    with pytest.raises(ValueError, match="goes without assistant_model and contrastive search"):
        ours.generate(IDS, MASK, past=past, assistant_model=ours)
    with pytest.raises(ValueError, match="a prompt to read has tokens"):
        hub.read_prompt(ours, np.zeros(0, int))
    with pytest.raises(ValueError, match="past is for prompts of tokens that are known"):
        jax.jit(lambda ids: ours.generate(ids, past=past))(IDS)


def test_an_encoder_decoder_reads_no_prompt_once():
    from flax_transformer.models.seq2seq import Seq2Seq

    sizes = {"embed": 12, "heads": 2, "head_width": 4, "inner": 16, "depth": 1, "output_scale": 12**-0.5}
    config = with_fields(t5_small(V), **sizes)
    t5 = hub.wrap(Seq2Seq(config, rngs=nnx.Rngs(0)), "T5ForConditionalGeneration", decoder_start_token_id=3)
    with pytest.raises(ValueError, match="by decoder-only models of text, a T5ForConditionalGeneration is another"):
        hub.read_prompt(t5, PROMPT)
