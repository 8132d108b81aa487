"""Models that write all tokens at once: what they see, what they are trained on, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx

from flax_transformer.decode import Greedy, Parallel
from flax_transformer.models.protocol import ParallelWriter
from flax_transformer.models.text.conditional_masked import mask_predict_tiny
from flax_transformer.models.text.ctc_translator import ctc_translator_tiny
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import RelativeConfig, with_fields
from flax_transformer.objective import CTCLoss, MaskPredictLoss, TokenLoss
from flax_transformer.objective.mask_predict import draw_masks
from flax_transformer.ops import Mask, capture
from flax_transformer.task.translator import decode_batch

pytestmark = pytest.mark.proves(
    ("conditional_masked", "ctc_translator"), "decode", "batched = alone; lengths by brute force; as `decode` says"
)

V, S, T, E = 14, 6, 5, 8
SIZES = {"vocab": V, "embed": 8, "inner": 12, "heads": 2, "depth": 1, "dropout": 0.0}
LENGTHS = jnp.array([6, 2, 4])


def model(name, **changes):
    preset = {"masked": mask_predict_tiny(longest=E), "ctc": ctc_translator_tiny(spread=2)}[name]
    cfg = with_fields(preset, **{**SIZES, **changes})
    made = cfg.build(nnx.Rngs(1))
    return jax.tree.map(lambda leaf: 2 * leaf, made)  # so that outputs differ by more than rounding


def tokens(*shape, seed=0):
    return jax.random.randint(jax.random.key(seed), shape, 4, V)


def config(name, **changes):
    own = {"iterations": 1} if name == "ctc" else {"iterations": 3, "beams": 3, "n_best": 3, "never": (0, 1, 2)}
    return Parallel(max_length=E, mask=1, **{**own, **changes})


BOTH = pytest.mark.parametrize("name", ["masked", "ctc"])


@pytest.mark.rotates
@BOTH
def test_a_sentence_is_written_alike_in_any_batch(name):
    one, source = model(name), tokens(3, S)
    together = decode_batch(one, source, LENGTHS, config=config(name), bos=1)
    other = jnp.where(jnp.arange(S + 2) < LENGTHS[:, None], jnp.pad(source, ((0, 0), (0, 2))), 7)
    padded = decode_batch(one, other, LENGTHS, config=config(name), bos=1)
    laid_out = decode_batch(jax.jit(type(one).for_decoding)(one), source, LENGTHS, config=config(name), bos=1)
    alone = decode_batch(one, source[1:2, :2], LENGTHS[1:2], config=config(name), bos=1)
    M = together.tokens.shape[-1]
    for found in (padded, laid_out):
        np.testing.assert_array_equal(found.tokens[..., :M], together.tokens)
        assert not found.tokens[..., M:].any()
        np.testing.assert_allclose(found.scores, together.scores, atol=1e-4)
    length = alone.tokens.shape[-1]
    np.testing.assert_array_equal(alone.tokens[0, :, :length], together.tokens[1, :, :length])
    np.testing.assert_allclose(alone.scores[0], together.scores[1], atol=1e-4)


@pytest.mark.rotates
def test_lengths_that_are_tried_are_the_likeliest_and_the_best_of_them_wins():
    """By writing every length alone, through the model's parts."""
    one, source = model("masked"), tokens(1, S)
    memory = one.encode(source)
    scores = np.asarray(one.length_scores(memory))[0]
    tried = np.argsort(-scores[1:], kind="stable")[:3] + 1
    found = one.write(source, None, config("masked"))
    assert sorted(found.lengths[0].tolist()) == sorted(tried.tolist())
    for length, text, score in zip(found.lengths[0], found.tokens[0], found.scores[0], strict=True):
        shown = np.full(int(length), 1)
        sure = np.zeros(int(length))
        for t in range(3):
            count = len(shown) if t == 0 else max(1, len(shown) * (3 - t) // 3)
            masked = np.argsort(sure, kind="stable")[:count]
            shown[masked] = 1
            logits = one.output(one.decode(jnp.asarray(shown)[None], memory)).logits()[0]
            shares = np.array(jax.nn.log_softmax(logits))
            shares[:, :3] = -np.inf
            shown[masked], sure[masked] = shares.argmax(-1)[masked], shares.max(-1)[masked]
        assert text[: int(length)].tolist() == shown.tolist()
        np.testing.assert_allclose(score, sure.mean(), atol=1e-4)


@pytest.mark.rotates
def test_every_position_of_a_target_sees_all_of_it_and_no_padding():
    one, source, target, counts = model("masked"), tokens(3, S), tokens(3, T, seed=1), jnp.array([5, 3, 4])
    one = jax.tree.map(lambda leaf: leaf / 2, one)  # so that heads look at more than one position
    see = lambda target: one.hidden_states(source, target, lengths=LENGTHS, target_lengths=counts)  # noqa: E731
    moved = jnp.abs(see(target.at[:, 2].set(4 + target[:, 2] % 9)) - see(target)).max(-1) > 1e-6
    assert moved[jnp.arange(T) < counts[:, None]].all()
    hidden = jnp.where(jnp.arange(T) < counts[:, None], target, 9)
    real = (jnp.arange(T) < counts[:, None])[..., None]
    np.testing.assert_allclose(jnp.where(real, see(hidden), 0), jnp.where(real, see(target), 0), atol=1e-6)


@pytest.mark.rotates
def test_the_decoder_does_not_look_at_what_tells_the_length():
    one, source, target = model("masked"), tokens(3, S), tokens(3, T, seed=1)
    memory = one.encode(source, LENGTHS)
    other = memory.at[:, 0].set(3.0)
    np.testing.assert_array_equal(one.decode(target, memory, LENGTHS), one.decode(target, other, LENGTHS))
    assert jnp.abs(one.length_scores(memory) - one.length_scores(other)).max() > 1e-2
    assert (one.length_scores(memory)[:, 0] < -1e8).all()
    _, (shares,) = capture(type(one).encode, "attention_weights")(one, source, LENGTHS)
    assert shares.shape[-2:] == (S + 1, S + 1)


def batch(rows=3, length=T + 1):
    """Of targets whose last token is an end mark, 2, as data give them."""
    counts = np.array([length, 3, 4, 0][:rows])
    labels = np.array(tokens(rows, length, seed=1))
    labels[np.arange(rows), np.maximum(counts - 1, 0)] = 2
    real = np.arange(length) < counts[:, None]
    labels = np.where(real, labels, 0)
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    lengths = np.where(counts > 0, np.array([6, 2, 4, 0][:rows]), 0)
    inputs = {"source": tokens(rows, S), "target": jnp.asarray(target), "lengths": jnp.asarray(lengths)}
    return {"inputs": inputs, "labels": jnp.asarray(labels), "weights": jnp.asarray(real, jnp.float32)}


@pytest.mark.rotates
def test_the_loss_is_that_of_masked_tokens_and_of_lengths():
    one, data = model("masked"), batch()
    found = MaskPredictLoss().held_out(one, data)
    counts, total, lengths = [5, 2, 3], 0.0, 0.0
    for row, count in enumerate(counts):
        source = data["inputs"]["source"][row : row + 1, : int(data["inputs"]["lengths"][row])]
        logits = one.output(one.hidden_states(source, jnp.full((1, count), 1))).logits()[0]
        labels = data["labels"][row, :count]
        total -= jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1).sum()
        lengths -= jax.nn.log_softmax(one.length_scores(one.encode(source))[0])[count]
    assert found["count"] == sum(counts)
    np.testing.assert_allclose(found["plain"], total, rtol=1e-4)
    np.testing.assert_allclose(found["loss"], total + lengths, rtol=1e-4)
    np.testing.assert_allclose(found["length_loss"].value(), lengths / 3, rtol=1e-4)


@pytest.mark.rotates
def test_empty_rows_count_nothing():
    one = model("masked")
    with_empty, without = (MaskPredictLoss().held_out(one, batch(rows)) for rows in (4, 3))
    np.testing.assert_allclose(with_empty["loss"], without["loss"], rtol=1e-5)
    assert with_empty["count"] == without["count"]
    slopes = jax.grad(lambda one: MaskPredictLoss()(one, batch(4), key=jax.random.key(0))[0])(one)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_any_number_of_tokens_is_masked_at_any_place():
    counts = jnp.tile(jnp.array([4, 1, 0, 6]), 1000)
    masked = np.asarray(draw_masks(counts, 6, jax.random.key(0))).reshape(1000, 4, 6)
    many = masked.sum(-1)
    assert not masked[:, 0, 4:].any()
    assert (many[:, 1] == 1).all()
    assert (many[:, 2] == 0).all()
    for row, count in ((0, 4), (3, 6)):
        shares = np.bincount(many[:, row], minlength=count + 1)[1:] / 1000
        np.testing.assert_allclose(shares, 1 / count, atol=0.05)
        places = masked[:, row, :count].mean(axis=0)
        np.testing.assert_allclose(places, (count + 1) / 2 / count, atol=0.06)


@pytest.mark.rotates
@BOTH
def test_every_parameter_learns(name):
    one, loss = model(name), {"masked": MaskPredictLoss(label_smoothing=0.1), "ctc": CTCLoss()}[name]
    slopes = jax.grad(lambda one: loss(one, batch(), key=jax.random.key(0))[0])(one)
    silent = {
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(slopes)
        if not jnp.abs(leaf).max() > 1e-7
    }
    assert {each for each in silent if "key" not in each or "bias" not in each} == set()


class Held:
    """A model whose objective is given all logits, as those of speech are."""

    def __init__(self, one):
        self.one = one
        self.hidden_states, self.memory_mask = one.hidden_states, one.memory_mask

    def output(self, hidden, key=None):
        return self.one.output(hidden).logits()


@pytest.mark.rotates
@pytest.mark.parametrize("changes", [{"tied_output": False, "output_bias": True}, {"mean_tokens": True}])
def test_the_loss_of_ways_is_the_same_without_all_logits(changes):
    loss = CTCLoss(mean_tokens=changes.pop("mean_tokens", False), blank=1)
    one, data = model("ctc", **changes), batch(4)
    found = jax.value_and_grad(lambda one: loss(one, data)[0])(one)
    expected = jax.value_and_grad(lambda one: loss(Held(one), data)[0])(one)
    assert expected[0] > 1
    for mine, its in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-4)


@pytest.mark.rotates
def test_ways_are_trained_without_room_for_all_logits():
    one, data = model("ctc", vocab=5_000), batch()
    data = jax.tree.map(lambda x: jnp.tile(x, (100,) + (1,) * (x.ndim - 1)), data)  # 3,600 positions

    def room(one):
        step = jax.jit(jax.grad(lambda one: CTCLoss()(one, data)[0]))
        return step.lower(one).compile().memory_analysis().temp_size_in_bytes

    all_logits = 3_600 * 5_000 * 4
    assert room(one) < all_logits / 2


@pytest.mark.rotates
def test_a_source_is_spread_and_read_from_both_sides():
    one, source = model("ctc"), tokens(3, S)
    hidden = one.hidden_states(source, lengths=LENGTHS)
    assert hidden.shape == (3, 2 * S, 8)
    assert one.memory_mask(Mask(lengths=LENGTHS)).lengths.tolist() == [12, 4, 8]
    moved = jnp.abs(one.hidden_states(source.at[:, 1].add(1) % V, lengths=LENGTHS) - hidden).max(-1) > 1e-6
    assert moved[jnp.arange(2 * S) < 2 * LENGTHS[:, None]].all()
    assert one(source).shape == (3, 2 * S, V)


@pytest.mark.rotates
def test_what_cannot_be_is_refused_in_one_sentence():
    masked, ctc, source = model("masked"), model("ctc"), tokens(2, S)
    assert isinstance(masked, ParallelWriter)
    for one in (masked, ctc):
        with pytest.raises(ValueError, match="writes all tokens at once has no cache"):
            decode_batch(one, source, None, config=Greedy(max_length=3, eos=2), bos=1)
        with pytest.raises(ValueError, match="has no cache"):
            one.step(None, source[:, 0])
    with pytest.raises(ValueError, match="as many lengths as beams, got beams=9, 8 lengths"):
        masked.write(source, None, Parallel(max_length=20, mask=1, beams=9))
    with pytest.raises(ValueError, match="one pass, and one hypothesis, got iterations=10, beams=1"):
        ctc.write(source, None, Parallel(max_length=20, mask=1))
    with pytest.raises(
        ValueError, match="must not be longer than the lengths that are predicted, got rows of 9 tokens"
    ):
        MaskPredictLoss()(masked, batch(length=10))
    with pytest.raises(ValueError, match="reads no target"):
        ctc.decode(source, None)
    autoregressive = with_fields(transformer_tiny(), **SIZES)
    with pytest.raises(ValueError, match="ParallelSearch is for models that write all tokens at once"):
        decode_batch(autoregressive.build(nnx.Rngs(0)), source, None, config=config("ctc"), bos=1)
    with pytest.raises(ValueError, match="longest must be at least 1, got 0"):
        mask_predict_tiny(longest=0)
    with pytest.raises(ValueError, match="spread must be at least 1, got 0"):
        ctc_translator_tiny(spread=0)
    for preset in (mask_predict_tiny(), ctc_translator_tiny()):
        relative = with_fields(preset.decoder, relative=RelativeConfig())
        with pytest.raises(ValueError, match="no relative positions"):
            with_fields(preset, decoder=relative)


@pytest.mark.rotates
def test_the_loss_without_a_key_is_that_of_tokens_all_masked():
    """As `TokenLoss` has it, of the model read the same way."""
    one, data = model("masked"), batch()
    counts = jnp.array([5, 2, 3])
    real = jnp.arange(T + 1) < counts[:, None]
    shown = {**data["inputs"], "target": jnp.where(real, 1, data["labels"]), "target_lengths": counts}
    plain = TokenLoss(label_smoothing=0.1)(one, {**data, "inputs": shown, "weights": real.astype(jnp.float32)})
    total, metrics = MaskPredictLoss(label_smoothing=0.1)(one, data)
    np.testing.assert_allclose(total - metrics["length_loss"].total, plain[0], rtol=1e-4)


EIGHT = """
import json, jax, numpy as np
from tests.models.test_non_autoregressive import batch, model
from flax_transformer.objective import CTCLoss, MaskPredictLoss
from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings
import jax.numpy as jnp

data = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), batch(4))
found = {}
for name, objective in (("masked", MaskPredictLoss()), ("ctc", CTCLoss())):
    one = model(name)
    loss = jax.jit(jax.value_and_grad(lambda one: objective(one, data, key=jax.random.key(3))[0]))
    expected, mesh = loss(one), make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):
        got = loss(jax.device_put(one, tree_shardings(one, mesh)))
    pairs = zip(jax.tree.leaves(jax.device_get(got)), jax.tree.leaves(jax.device_get(expected)), strict=True)
    found[name] = max(float(np.abs(mine - its).max() / (1 + np.abs(its).max())) for mine, its in pairs)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.proves(("conditional_masked", "ctc_translator"), "shard", "data × fsdp × tensor, gradients too")
def test_eight_devices_are_one():
    found, _ = on_eight("-c", EIGHT)
    assert len(found) == 2
    assert max(found.values()) < 1e-4, found
