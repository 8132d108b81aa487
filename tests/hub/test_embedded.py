"""Embeddings of tokens give what the tokens give: in calls, in generation, padded, on a mesh, and in transforms."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx

from flax_transformer import hub
from flax_transformer.bench import Compilations
from flax_transformer.hub.generate import search_beams, stream_tokens
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import Rotary, with_fields
from tests.models.test_causal import CONFIGS

pytestmark = pytest.mark.proves("generation", "embeddings of tokens, as the tokens")

V, D = 31, 128
LLAMA = with_fields(CONFIGS["llama"], qk_norm=None, rotary=Rotary(base=50.0))
SIZES = {"embed": 12, "heads": 2, "head_width": 4, "inner": 16, "depth": 1, "output_scale": 12**-0.5}
MODELS = {
    "gpt2": ("GPT2LMHeadModel", gpt2_tiny(vocab=V), {}),
    "llama": ("LlamaForCausalLM", LLAMA, {}),
    "t5": ("T5ForConditionalGeneration", with_fields(t5_small(V), **SIZES), {"decoder_start_token_id": 3}),
}
IDS = np.random.default_rng(0).integers(4, V, (3, 6))
MASK = np.arange(6) >= np.array([[0], [2], [5]])
WAYS = {
    "greedy": {}, "beams": {"num_beams": 3, "num_return_sequences": 2},
    "drawn": {"do_sample": True, "key": jax.random.key(1), "num_return_sequences": 2},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 3},
}  # fmt: skip


def wrapped(name, scale=3):
    kind, config, said = MODELS[name]
    model = jax.jit(lambda: config.build(nnx.Rngs(0)))()
    return hub.wrap(jax.tree.map(lambda x: scale * x, model), kind, eos_token_id=2, pad_token_id=3, **said)


@pytest.fixture(scope="module", params=["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "gpt2")])  # noqa: E501  # fmt: skip
def ours(request):
    return wrapped(request.param)


def embedded(ours, ids=IDS):
    return np.asarray(ours.model.embedding.embed(jnp.asarray(ids)))


def written(ours, ids=IDS):
    """Return how many tokens of a prompt sequences begin with, which those after embeddings do not."""
    return ids.shape[1] if ours.architecture.uses == ("text-generation",) else 0


@pytest.mark.rotates
def test_calls_are_those_of_tokens(ours):
    sides = {} if written(ours) else {"decoder_input_ids": IDS[:, :3]}
    want = ours(input_ids=IDS, attention_mask=MASK.astype(int), **sides).logits
    got = ours(inputs_embeds=embedded(ours), attention_mask=MASK.astype(int), **sides).logits
    np.testing.assert_allclose(got, want, atol=1e-6 * float(jnp.abs(want).max()))


@pytest.mark.rotates
@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_after_tokens(ours, way):
    if way == "contrastive" and not written(ours):
        pytest.skip("contrastive search is of decoder-only models")
    options = {"max_new_tokens": 9, **WAYS[way]}
    for rows in (slice(0, 3), slice(0, 1)):
        want = np.asarray(ours.generate(IDS[rows], MASK[rows], **options))[:, written(ours) :]
        got = ours.generate(inputs_embeds=embedded(ours)[rows], attention_mask=MASK[rows], **options)
        np.testing.assert_array_equal(got, want)


@pytest.mark.rotates
def test_one_embedding_is_a_prompt(ours):
    want = np.asarray(ours.generate(IDS[:, -1:], max_new_tokens=5))[:, 1 if written(ours) else 0 :]
    np.testing.assert_array_equal(ours.generate(inputs_embeds=embedded(ours)[:, -1:], max_new_tokens=5), want)


@pytest.mark.rotates
def test_scores_streams_beams_and_transforms(ours):
    x, options = embedded(ours), {"max_new_tokens": 7}
    want = ours.generate(IDS, **options, return_dict_in_generate=True)
    got = ours.generate(inputs_embeds=x, **options, return_dict_in_generate=True)
    np.testing.assert_allclose(got.transition_scores, want.transition_scores, atol=1e-5)
    tokens = np.asarray(want.sequences)[:, written(ours) or 1 :]
    found = np.concatenate(list(stream_tokens(ours, inputs_embeds=x, chunk=3, **options)), axis=1)
    np.testing.assert_array_equal(found[:, : tokens.shape[1]], tokens)
    beams = [search_beams(ours, **given, num_beams=2, **options)[0] for given in ({"input_ids": IDS}, {"inputs_embeds": x})]  # noqa: E501  # fmt: skip
    np.testing.assert_array_equal(beams[0].tokens, beams[1].tokens)
    traced = jax.jit(lambda p, x: p.generate(inputs_embeds=x, **options))(ours, x)
    begun = 0 if written(ours) else 1
    np.testing.assert_array_equal(traced[:, begun : begun + tokens.shape[1]], tokens)


@pytest.mark.rotates
def test_logits_have_gradients_by_embeddings():
    ours = wrapped("gpt2")

    def score(x):
        return ours(inputs_embeds=x).logits[:, -1, 7].sum()

    x = jnp.asarray(embedded(ours))
    gradient, way = jax.grad(score)(x), jax.random.normal(jax.random.key(0), x.shape)
    np.testing.assert_allclose(jnp.vdot(gradient, way), jax.jvp(score, (x,), (way,))[1], rtol=1e-4)
    assert float(jnp.abs(gradient[:, 0]).max()) > 0


@pytest.mark.rotates
def test_other_lengths_share_a_program():
    ours = wrapped("gpt2")
    x = embedded(ours)
    ours.generate(inputs_embeds=x, attention_mask=MASK, max_new_tokens=5)
    with Compilations() as fresh:
        ours.generate(inputs_embeds=x[:, 2:], attention_mask=MASK[:, 2:], max_new_tokens=6)
    assert fresh.count == 0


@pytest.mark.rotates
def test_a_trained_prompt_may_be_a_mixture():
    ours = wrapped("gpt2")
    model, x = ours.model, jnp.asarray(embedded(ours))
    states, cache = model.read(x[:, :4], None)
    more, _ = model.read_on(model.read(x[:1, :4], jnp.zeros((1, 4), bool))[1], x[:1, 4:], jnp.zeros((1, 2), bool))
    whole = model.encode(x)
    np.testing.assert_allclose(states, whole[:, :4], atol=1e-5)
    np.testing.assert_allclose(more, whole[:1, 4:], atol=1e-5)
    logits, _ = model.step(cache.grow(6), x[:, 4])
    np.testing.assert_allclose(logits, model.output(whole[:, 4]).logits(), atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "goes by input_ids, got none"),
        ({"input_ids": IDS, "inputs_embeds": np.zeros((3, 6, D), np.float32)}, "in their place, got both"),
        ({"inputs_embeds": np.zeros((3, 6, 5), np.float32)}, r"must be floats \[\*B, T, 128\], as wide .* \(3, 6, 5\)"),
        ({"inputs_embeds": np.zeros((3, 6, D), int)}, "must be floats .* got int64"),
        ({"inputs_embeds": np.zeros((3, 0, D), np.float32)}, "at least one row of at least one token"),
        (
            {"inputs_embeds": np.zeros((3, 6, D), np.float32), "attention_mask": MASK[:, :4]},
            "the shape of inputs_embeds",
        ),
        ({"inputs_embeds": np.zeros((1, 65, D), np.float32)}, "must fit into the positions"),
        ({"inputs_embeds": np.zeros((1, 6, D), np.float32), "prompt_lookup_num_tokens": 3}, "go without past"),
        ({"inputs_embeds": np.zeros((1, 6, D), np.float32), "encoder_repetition_penalty": 1.2}, "need its tokens"),
    ],
)
def test_what_cannot_be_is_named(given, message):
    ours = wrapped("gpt2")
    assert ours.model.cfg.embedding.embed == D
    with pytest.raises(ValueError, match=message):
        ours.generate(**given, max_new_tokens=3)


@pytest.mark.rotates
def test_calls_refuse_what_are_no_embeddings():
    ours = wrapped("gpt2")
    with pytest.raises(ValueError, match="got no input_ids"):
        ours(attention_mask=MASK.astype(int))
    with pytest.raises(ValueError, match="in their place, got both"):
        ours(input_ids=IDS, inputs_embeds=embedded(ours))
    with pytest.raises(ValueError, match=r"inputs_embeds must be floats \[\*B, T, 128\]"):
        ours(inputs_embeds=embedded(ours)[..., :9])
    with pytest.raises(ValueError, match="needs decoder_input_ids, or ids of the source"):
        (t5 := wrapped("t5"))(inputs_embeds=embedded(t5))
    with pytest.raises(ValueError, match=r"its embedding, \[R, E\]"):
        ours.model.step(ours.model.init_cache(1, 2), jnp.zeros(D))


@pytest.mark.slow
def test_a_mesh_changes_nothing():
    found = on_eight(Path(__file__).parent / "eight_embedded.py")[0]
    assert found["devices"] == 8
    for name in MODELS:
        assert found[name]["error"] <= 1e-5
        assert found[name]["same"]
