"""Terms of layers by NumPy, one forward pass for all of them, a projection that is trained and left out, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import EmbeddingConfig, transformer_block, with_fields
from flax_transformer.objective import (
    AttentionRelations,
    AttentionScoreError,
    CosineEmbedding,
    DistilLoss,
    HiddenStateError,
    LabelLoss,
    LayerLoss,
    MaskedDistilLoss,
    MaskedLoss,
)
from flax_transformer.objective.layer import layer_values
from flax_transformer.objective.layer_term import BothLayers
from flax_transformer.parallel import tree_shardings
from flax_transformer.train.mean import means

pytestmark = pytest.mark.proves("distillation of texts", "every loss by NumPy and PyTorch, gradients too")

B, T, N, H, D, L = 3, 5, 2, 3, 6, 2
RNG = np.random.default_rng(0)
LENGTHS = np.array([5, 2, 3])
REAL = np.arange(T) < LENGTHS[:, None]


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


STUDENT = {"hidden_states": drawn(L + 1, B, T, D), **{name: drawn(L, B, T, N, H) for name in ("query", "key", "value")}}
TEACHER = {
    "hidden_states": {"0": drawn(B, T, D), "4": drawn(B, T, D)},
    **{name: {"3": drawn(B, T, N, H)} for name in ("query", "key", "value")},
}
BOTH = BothLayers(
    student=jax.tree.map(jnp.asarray, STUDENT),
    teacher=jax.tree.map(jnp.asarray, TEACHER),
    real=jnp.asarray(REAL),
    project=lambda x: x,
)
PAIRS = [(STUDENT["hidden_states"][0], TEACHER["hidden_states"]["0"]),
         (STUDENT["hidden_states"][-1], TEACHER["hidden_states"]["4"])]  # fmt: skip


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def products(a, b, row, head):
    return a[row, : LENGTHS[row], head] @ b[row, : LENGTHS[row], head].T / np.sqrt(a.shape[-1])


def relation(own, theirs):
    """Compute a divergence row by row and head by head, of the positions that are there alone."""
    total = 0.0
    for row in range(B):
        for head in range(own[0].shape[2]):
            p, q = softmax(products(*theirs, row, head)), softmax(products(*own, row, head))
            total += (p * np.log(p / q)).sum() / own[0].shape[2]
    return total / LENGTHS.sum()


def test_states_by_layers_are_compared_where_there_are_tokens():
    layers = ((0, 0), (-1, 4))
    squares = sum(((own - theirs) ** 2)[REAL].mean(-1).mean() for own, theirs in PAIRS)
    np.testing.assert_allclose(HiddenStateError(layers=layers)(BOTH).value(), squares, rtol=1e-5)
    cosines = [(a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1) for a, b in PAIRS]
    expected = sum((1 - each)[REAL].mean() for each in cosines)
    np.testing.assert_allclose(CosineEmbedding(layers=layers)(BOTH).value(), expected, rtol=1e-5)


def test_scores_are_compared_before_the_softmax():
    own, theirs = (STUDENT["query"][1], STUDENT["key"][1]), (TEACHER["query"]["3"], TEACHER["key"]["3"])
    errors = [(products(*own, row, head) - products(*theirs, row, head)) ** 2 for row in range(B) for head in range(N)]
    found = AttentionScoreError(layers=((1, 3),))(BOTH)
    np.testing.assert_allclose(found.value(), sum(map(np.sum, errors)) / (N * (LENGTHS**2).sum()), rtol=1e-5)


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("relations", [("query-key", "value-value"), ("query-query", "key-key", "value-value")])
def test_relations_are_divergences_from_the_teacher(relations, heads):
    def part(values, name, layer):
        return values[name][layer].reshape(B, T, heads or N, -1)

    expected = 0.0
    for a, b in (each.split("-") for each in relations):
        own = part(STUDENT, a, 1), part(STUDENT, b, 1)
        expected += relation(own, (part(TEACHER, a, "3"), part(TEACHER, b, "3")))
    found = AttentionRelations(layers=((-1, 3),), relations=relations, heads=heads)(BOTH)
    np.testing.assert_allclose(found.value(), expected, rtol=1e-5)


ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(vocab=30, embed=8, position="learned", max_length=T, norm=1e-12, scaled=False),
    block=transformer_block(embed=8, heads=2, inner=16, norm_eps=1e-12, activation="gelu", dropout=0.1),
    depth=2,
)
CLASSIFIER = with_head(ENCODER, outputs=3, pool="first").build(nnx.Rngs(0))
TOKENS = {"tokens": jnp.asarray(RNG.integers(0, 30, (B, T)), jnp.int32), "lengths": jnp.asarray(LENGTHS, jnp.int32)}
ROWS = {"inputs": TOKENS, "labels": jnp.array([0, 2, 1]), "weights": jnp.ones(B)}


def taught(depth=3, embed=8, heads=2, names=("hidden_states", "query", "key", "value")):
    """Make a batch with what another model says of it."""
    config = with_fields(ENCODER, embed=embed, heads=heads, depth=depth)
    model = with_head(config, outputs=3, pool="first").build(nnx.Rngs(1))
    hidden, values = layer_values(model, TOKENS, names)
    layers = {name: {"-1": each[-1], "0": each[0]} for name, each in values.items()}
    return {**ROWS, "teacher": {"logits": model.output(hidden), **layers}}


ALL = (CosineEmbedding(weight=0.5), HiddenStateError(weight=2.0, layers=((0, 0), (-1, -1))), AttentionScoreError(),
       AttentionRelations(weight=3.0))  # fmt: skip


@pytest.mark.rotates
def test_values_of_layers_are_those_of_the_model():
    hidden, values = layer_values(CLASSIFIER, TOKENS, ("hidden_states", "query"))
    assert {name: each.shape for name, each in values.items()} == {
        "hidden_states": (3, B, T, 8),
        "query": (2, B, T, 2, 4),
    }
    np.testing.assert_array_equal(values["hidden_states"][-1], hidden)
    np.testing.assert_array_equal(hidden, CLASSIFIER.hidden_states(**TOKENS))
    block = jax.tree.map(lambda leaf: leaf[1], CLASSIFIER.backbone.trunk.blocks)
    np.testing.assert_allclose(values["query"][1], block.attention.query(values["hidden_states"][1]), rtol=1e-5)


@pytest.mark.rotates
def test_terms_are_added_to_what_the_objective_minimises():
    batch = taught()
    objective = LayerLoss(of=DistilLoss(kind="soft"), terms=ALL)
    assert objective.asked == (
        ("logits", 0), ("hidden_states", -1), ("hidden_states", 0), ("query", -1), ("key", -1), ("value", -1)
    )  # fmt: skip
    loss, metrics = objective(CLASSIFIER, batch)
    found = means({**metrics, "loss": metrics["loss"]})
    total, counted = objective.of(CLASSIFIER, batch)
    terms = sum(term.weight * found[term.name] for term in ALL)
    np.testing.assert_allclose(found["loss"], total / counted["count"] + terms, rtol=1e-5)
    np.testing.assert_allclose(loss / metrics["count"], found["loss"], rtol=1e-5)
    assert all(found[term.name] > 1e-3 for term in ALL)
    assert objective.held_out(CLASSIFIER, batch).keys() == {"loss", "count", "accuracy"}


def test_without_a_teacher_the_objective_is_minimised_alone():
    loss, metrics = LayerLoss(of=LabelLoss(), terms=ALL)(CLASSIFIER, ROWS)
    expected = LabelLoss()(CLASSIFIER, ROWS)
    assert (float(loss), metrics.keys()) == (float(expected[0]), expected[1].keys())


@pytest.mark.rotates
def test_only_the_student_learns():
    def loss(model, batch):
        return LayerLoss(of=DistilLoss(kind="soft"), terms=ALL)(model, batch)[0]

    batch = taught()
    student, teacher = jax.grad(loss, argnums=(0, 1), allow_int=True)(CLASSIFIER, batch)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(teacher["teacher"]))
    moved = {jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(student) if np.any(leaf)}
    assert any("attention" in each for each in moved)
    assert any("embedding" in each for each in moved)


def test_who_has_the_layers_of_the_teacher_has_nothing_to_learn_from_them():
    values = layer_values(CLASSIFIER, TOKENS, ("hidden_states", "query", "key", "value"))[1]
    teacher = {name: {"-1": each[-1], "0": each[0]} for name, each in values.items()}
    _, metrics = LayerLoss(of=LabelLoss(), terms=ALL)(CLASSIFIER, {**ROWS, "teacher": teacher})
    for term in ALL:
        np.testing.assert_allclose(metrics[term.name].value(), 0, atol=1e-6)


@pytest.mark.rotates
def test_a_wider_teacher_is_reached_by_a_matrix_that_is_trained_and_left_out():
    batch = taught(embed=12)
    objective = LayerLoss(of=LabelLoss(), terms=(HiddenStateError(),), width=12)
    model = objective.carry.trained(CLASSIFIER)
    assert objective.carry.whole(model, None) is model.student

    def loss(model):
        return objective(model, batch, carried=None)[0]

    gradient = jax.grad(loss)(model)
    assert gradient.to_teacher.shape == (8, 12)
    assert np.any(gradient.to_teacher[...])
    states = layer_values(CLASSIFIER, TOKENS, ("hidden_states",))[1]["hidden_states"][-1] @ model.to_teacher[...]
    _, metrics, carried = objective(model, batch, carried=None)
    expected = ((states - batch["teacher"]["hidden_states"]["-1"]) ** 2)[REAL].mean()
    np.testing.assert_allclose(metrics["hidden_loss"].value(), expected, rtol=1e-5)
    assert carried is None
    mesh = AbstractMesh((2, 2), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    assert tree_shardings(model, mesh).to_teacher.get_value().spec == PartitionSpec("fsdp", None)
    same = LayerLoss(of=LabelLoss(), terms=(HiddenStateError(),), width=8)
    assert same.carry.trained(CLASSIFIER) is CLASSIFIER


def test_soft_targets_of_masked_tokens_are_weighed_with_the_tokens():
    model = MaskedLMConfig(encoder=ENCODER).build(nnx.Rngs(0))
    positions, labels = np.array([[0, 3], [1, 0], [2, 1]], np.int32), RNG.integers(0, 30, (B, 2)).astype(np.int32)
    weights = np.array([[1, 1], [1, 0], [1, 1]], np.float32)
    teacher = 3 * drawn(B, 2, 30)
    said = {"positions": positions, "labels": labels, "weights": weights}
    batch = {"inputs": TOKENS, **{name: jnp.asarray(each) for name, each in said.items()}}
    loss, metrics = MaskedDistilLoss(weight=0.7, temperature=2.0)(
        model, {**batch, "teacher": {"logits": jnp.asarray(teacher)}}
    )
    plain, expected = MaskedLoss()(model, batch)
    logits = np.asarray(model.output(model.hidden_states(**TOKENS)).logits())
    logits = np.take_along_axis(logits, positions[..., None], axis=1)
    p, q = softmax(teacher / 2), softmax(logits / 2)
    divergence = (weights * (p * np.log(p / q)).sum(-1)).sum() * 4
    np.testing.assert_allclose(loss, 0.3 * plain + 0.7 * divergence, rtol=1e-5)
    np.testing.assert_allclose(metrics["soft_loss"].value(), divergence / 5, rtol=1e-5)
    assert metrics["masked_accuracy"] == expected["masked_accuracy"]
    assert MaskedDistilLoss().held_out(model, batch)["loss"] == plain


@pytest.mark.parametrize(("make", "message"), [
    (lambda: LayerLoss(of=LabelLoss(), terms=()), "terms must be at least one, and of different kinds, got none"),
    (lambda: LayerLoss(of=LabelLoss(), terms=(HiddenStateError(), HiddenStateError(layers=((0, 0),)))),
     "of different kinds, got hidden_loss, hidden_loss"),
    (lambda: HiddenStateError(layers=()), "layers must be at least one pair"),
    (lambda: AttentionRelations(heads=0), "heads must be at least 1, got 0"),
    (lambda: AttentionRelations(relations=()), "relations must be at least one"),
    (lambda: CosineEmbedding(weight=-1.0), "weight must be at least 0, got -1.0"),
    (lambda: MaskedDistilLoss(temperature=0.0), "temperature above 0"),
    (lambda: MaskedDistilLoss(weight=1.1), r"weight must be in \[0, 1\]"),
])  # fmt: skip
def test_options_that_make_no_loss_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.rotates
@pytest.mark.parametrize(("term", "options", "message"), [
    (HiddenStateError(layers=((3, 0),)), {}, r"hidden_states must be of the layers -3 … 2, got 3"),
    (HiddenStateError(), {"embed": 12}, r"must have the teacher's shape, \(3, 5, 12\), got \(3, 5, 8\)"),
    (AttentionScoreError(), {"heads": 4}, "must have as many heads, got 2 and 4"),
    (AttentionRelations(heads=3), {}, "heads must divide the width of queries, keys and values, got 3 of 8"),
])  # fmt: skip
def test_layers_that_do_not_fit_are_refused(term, options, message):
    with pytest.raises(ValueError, match=message):
        LayerLoss(of=LabelLoss(), terms=(term,))(CLASSIFIER, taught(**options))


def test_relations_are_of_models_with_other_numbers_of_heads():
    objective = LayerLoss(of=LabelLoss(), terms=(AttentionRelations(heads=2),))
    assert objective(CLASSIFIER, taught(heads=4, embed=12))[1]["relation_loss"].value() > 0


@pytest.mark.rotates
def test_models_of_several_stacks_are_refused():
    model = with_fields(t5_small(), embed=8, heads=2, inner=8, depth=1, vocab=30).build(nnx.Rngs(0))
    inputs = {"source": TOKENS["tokens"], "target": TOKENS["tokens"]}
    with pytest.raises(ValueError, match=r"one stack of them, a .* marks hidden_states 2 times"):
        layer_values(model, inputs, ("hidden_states",))


@pytest.mark.rotates
def test_scores_of_other_classes_are_refused():
    with pytest.raises(ValueError, match=r"must score the classes of the student, \(3, 3\), got \(3, 4\)"):
        DistilLoss(kind="soft")(CLASSIFIER, {**ROWS, "teacher": {"logits": jnp.zeros((3, 4))}})
