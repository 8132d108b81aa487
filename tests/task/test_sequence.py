"""What experiments on pairs of sequences share: small models of presets, the loss, weights, tokens of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import narrowed
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.bart import bart_base
from flax_transformer.models.text.t5 import t5_small, t5_v1_1_small
from flax_transformer.objective import TokenLoss
from flax_transformer.task.exercise import ExerciseMix
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.spec import Spec, sized
from flax_transformer.task.text_to_text import Restored, open_marked, sample_lines
from flax_transformer.train.folder import RunFolder
from tests.batch import taught

pytestmark = pytest.mark.slow

VOCAB = Spec(uses=("text2text-generation",), vocab=11)
PRESETS = {"t5": t5_v1_1_small, "bart": bart_base}
BATCH = taught(
    jnp.array([[5, 6, 7, 2, 0], [8, 2, 0, 0, 0], [6, 6, 9, 9, 2]]),
    jnp.array([4, 2, 5]),
    jnp.array([[0, 7, 6, 5, 2], [0, 8, 2, 0, 0], [0, 9, 6, 2, 0]]),
    jnp.array([4, 2, 3]),
)
loss_of = jax.jit(TokenLoss())
gradient_of = jax.jit(jax.grad(lambda model, batch: TokenLoss()(model, batch)[0]))


@pytest.fixture(scope="module", params=PRESETS)
def model(request):
    config = narrowed(PRESETS[request.param](dropout=0.0), embed=8, heads=2, inner=12, depth=1)
    return Seq2Seq(sized(config, VOCAB), rngs=nnx.Rngs(0))


@pytest.mark.parametrize("preset", [t5_small, t5_v1_1_small, bart_base])
def test_narrowed_models_are_the_preset_in_small(preset):
    config = sized(narrowed(preset(dropout=0.0), embed=8, heads=2, inner=12, depth=3), VOCAB)
    model = nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))
    assert jax.tree.leaves(model.encoder.blocks.attention.query)[-1].shape == (3, 8, 2, 4)
    assert model.embedding.token.embedding.shape == (11, 8)
    assert config.output_scale == (8**-0.5 if preset is t5_small else 1)
    assert config.encoder.block.feedforward.activation == preset().encoder.block.feedforward.activation


def test_the_loss_is_a_sum_over_rows(model):
    whole, metrics = loss_of(model, BATCH)
    parts = [loss_of(model, jax.tree.map(lambda value, i=i: value[i : i + 1], BATCH)) for i in range(3)]
    assert metrics["count"] == sum(part[1]["count"] for part in parts) == 9
    np.testing.assert_allclose(whole, sum(part[0] for part in parts), rtol=1e-5)


def test_wider_and_empty_rows_change_nothing(model):
    padded = jax.tree.map(lambda value: jnp.pad(value, [(0, 2)] + [(0, 3)] * (value.ndim - 1)), BATCH)
    (loss, metrics), (again, others) = loss_of(model, BATCH), loss_of(model, padded)
    np.testing.assert_allclose(loss, again, rtol=1e-5)
    assert metrics["count"] == others["count"]


def test_what_stands_in_the_padding_moves_no_parameter(model):
    inputs, real = BATCH["inputs"], BATCH["weights"] > 0
    other = {
        **inputs,
        "source": jnp.where(jnp.arange(5) < inputs["lengths"][:, None], inputs["source"], 10),
        "target": jnp.where(real, inputs["target"], 10),
    }
    batch = {**BATCH, "inputs": other, "labels": jnp.where(real, BATCH["labels"], 10)}
    one, two = gradient_of(model, BATCH), gradient_of(model, batch)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(one))
    for leaf, again in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(leaf, again, rtol=0, atol=1e-5 * largest)
    assert largest > 0


def test_own_tokens_are_read_wherever_they_stand_and_survive_a_restart(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    folder, texts = RunFolder(tmp_path), ["over and over and out"] * 3
    opened = [
        open_marked(VocabularyConfig(size=270), folder, texts, added=["<b>", "<a>"], single="<s> $A </s>")
        for _ in range(2)
    ]
    assert opened[0].fingerprint() == opened[1].fingerprint()
    ids = opened[1].encode(["over<a> and <b>"])[0]
    top = opened[1].vocab_size - 1
    assert [id for id in ids if id >= top - 1] == [top, top - 1]
    assert opened[1].decode([ids]) == [" over<a> and <b>"]
    marked = opened[1].inner.encode("over", add_special_tokens=True).ids
    assert (marked[0], marked[-1]) == (opened[1].bos, opened[1].eos)


def test_a_word_is_the_same_wherever_it_stands(tmp_path):
    tokenizer = open_marked(
        VocabularyConfig(size=270), RunFolder(tmp_path), ["over and over"] * 3, added=[], single="$A </s>"
    )
    first, both = tokenizer.encode(["over", "over over"])
    assert both == first * 2


@pytest.mark.parametrize("weights", [{"add": -1.0}, dict.fromkeys(ExerciseMix().present(), 0.0)])
def test_weights_must_make_sense(weights):
    with pytest.raises(ValueError, match=r"weights must not be negative, nor all 0, got .*'add'"):
        ExerciseMix(**weights)


def test_only_what_is_wrong_is_shown_with_what_it_should_be():
    restored = Restored(sources=["a", "b"], targets=["A", "B"], hypotheses=["A", "C"], loss=0.5)
    assert restored.exact_match == 50
    assert sample_lines("upper", restored, 2) == ["", "upper:", "  a", "  = A", "  b", "  → C", "    expected: B"]
    assert sample_lines("upper", restored, 0) == []
