"""Edited values change what a function returns as editing the function would, whatever they are wrapped in."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from flax_transformer.inside import (
    Add,
    Apply,
    Replace,
    Scale,
    intervene,
    patch_each,
    starting_at,
    switch_off,
    without_each,
)
from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.nn import EmbeddingConfig, attention, block, embedding, feedforward, transformer_block, trunk
from flax_transformer.ops import capture, capture_all
from flax_transformer.ops.attention import xla

pytestmark = pytest.mark.proves("inside", "interventions on named values through jit, vmap, grad, scan, remat, meshes")

TOKENS = jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def small(**options):
    table = EmbeddingConfig(vocab=11, embed=16, position="learned", max_length=8, scaled=False)
    layer = transformer_block(embed=16, heads=4, inner=64, norm_position="pre", activation="gelu")
    config = CausalConfig(embedding=table, block=layer, depth=3, **options)
    return jax.jit(lambda: Causal(config, rngs=nnx.Rngs(0)))()


@pytest.fixture(scope="module")
def model():
    return small()


def run(model, tokens):
    return model(tokens)


def without_kernel(model, layer, head):
    """Return the model whose output layer has no weights for a head."""
    copy = jax.tree.map(lambda leaf: leaf, model)
    kernel = copy.trunk.blocks.attention.out.kernel
    copy.trunk.blocks.attention.out.kernel = nnx.Param(kernel[...].at[layer, head].set(0))
    return copy


@pytest.mark.rotates
def test_a_head_is_switched_off_as_by_zero_weights(model):
    edits = switch_off(run, "head_outputs", model, TOKENS, axis=-2, chosen=[(0, (1, 2))])
    found = jax.jit(intervene(run))(edits, model, TOKENS)
    np.testing.assert_allclose(found, run(without_kernel(model, 1, 2), TOKENS), atol=1e-6)
    assert np.abs(found - run(model, TOKENS)).max() > 1e-4


@pytest.mark.rotates
@pytest.mark.parametrize(("remat", "unroll"), [("full", 1), ("none", True)])
def test_however_a_stack_runs_it_is_edited_alike(model, remat, unroll):
    edits = switch_off(run, "head_outputs", model, TOKENS, axis=-2, chosen=[(0, (1, 2))])
    expected = jax.jit(intervene(run))(edits, model, TOKENS)
    found = jax.jit(intervene(run))(edits, small(remat=remat, unroll=unroll), TOKENS)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_is_captured_is_what_was_edited(model):
    edits = {"hidden_states": Add(jnp.array([0.0, 1.0, 0.0]).reshape(3, 1, 1, 1))}
    (before,) = capture(run, "hidden_states")(model, TOKENS)[1]
    (after,) = jax.jit(capture(partial(intervene(run), edits), "hidden_states"))(model, TOKENS)[1]
    np.testing.assert_allclose(after[0], before[0], atol=1e-6)
    np.testing.assert_allclose(after[1], before[1] + 1, atol=1e-5)
    assert np.abs(after[2] - before[2]).max() > 0.1


def test_putting_back_what_was_there_changes_nothing(model):
    expected, values = capture_all(run, lambda name: name != "out_kernel")(model, TOKENS)
    edits = {name: [Replace(value) for value in each] for name, each in values.items()}
    np.testing.assert_allclose(jax.jit(intervene(run))(edits, model, TOKENS), expected, atol=1e-5)


def test_many_edits_are_each_by_itself(model):
    chosen, found = without_each(run, "head_outputs", model, TOKENS, axis=-2)
    assert chosen == [(layer, head) for layer in range(3) for head in range(4)]
    np.testing.assert_allclose(found[6], run(without_kernel(model, 1, 2), TOKENS), atol=1e-6)
    factors = jnp.ones((12, 3, 1, 1, 4, 1)).at[6, 1, 0, 0, 2].set(0)
    together = jax.vmap(intervene(run), in_axes=(0, None, None))({"head_outputs": Scale(factors)}, model, TOKENS)
    np.testing.assert_allclose(together[6], found[6], atol=1e-6)
    np.testing.assert_allclose(together[0], run(model, TOKENS), atol=1e-6)


def test_gradients_go_through_edits(model):
    def loss(amount):
        return jnp.sum(intervene(run)({"hidden_states": Add(amount)}, model, TOKENS)[..., 3])

    zero = jnp.zeros((3, 1, 1, 16))
    slope = jax.jit(jax.grad(loss))(zero)
    nudge = zero.at[1, 0, 0, 5].set(1e-2)
    assert float(loss(nudge) - loss(-nudge)) / 2e-2 == pytest.approx(float(slope[1, 0, 0, 5]), rel=2e-2)


def test_a_value_may_be_where_a_function_starts(model):
    (embedded,) = capture(run, "token_embedding")(model, TOKENS)[1]
    other = jnp.flip(TOKENS, -1)
    found = starting_at(run, "token_embedding")(embedded, model, other)
    np.testing.assert_allclose(found, run(model, TOKENS), atol=1e-6)


def test_patching_all_of_a_layer_gives_the_source(model):
    other = jnp.flip(TOKENS, -1)
    chosen, by_layer = patch_each(run, "hidden_states", (model, TOKENS), (model, other))
    assert chosen == [(0,), (1,), (2,)]
    np.testing.assert_allclose(by_layer, jnp.broadcast_to(run(model, TOKENS), by_layer.shape), atol=1e-5)


def test_a_patch_at_a_position_reaches_no_earlier_one(model):
    other = TOKENS.at[:, 2].set(7)
    chosen, found = patch_each(run, "hidden_states", (model, TOKENS), (model, other), axis=-2)
    first = np.asarray(found[chosen.index((0, 2))])
    np.testing.assert_allclose(first, run(model, TOKENS), atol=1e-5)  # only there do the inputs differ
    np.testing.assert_allclose(found[chosen.index((1, 3))][:, :3], run(model, other)[:, :3], atol=1e-6)
    assert np.abs(found[chosen.index((2, 3))][:, 3] - run(model, other)[:, 3]).max() > 1e-4


def doubled(x, amount):
    return 2 * x + amount


def test_a_function_of_ones_own_is_an_edit():
    f = lambda x: jax.lax.scan(lambda x, _: (checkpoint_name(x + 1, "seen"), None), x, length=3)[0]  # noqa: E731
    edit = Apply(doubled, (jnp.array([0.0, 10.0, 0.0]),))
    assert float(jax.jit(intervene(f))({"seen": edit}, jnp.float32(0))) == ((1 * 2 + 1) * 2 + 10 + 1) * 2


def test_several_places_are_edited_in_program_order():
    f = lambda x: checkpoint_name(jax.jit(lambda x: checkpoint_name(x + 1, "seen"))(x) * 10, "seen")  # noqa: E731
    assert float(intervene(f)({"seen": [None, Add(1.0)]}, 1.0)) == 21
    assert float(intervene(f)({"seen": [Add(1.0)]}, 1.0)) == 30


@pytest.mark.parametrize(
    ("edits", "rule"),
    [
        ({"sen": Scale(0.0)}, "an edit needs a name of what f marks: seen, last; got 'sen'"),
        ({"seen": [Scale(jnp.ones(1))] * 2}, "seen is marked at 1 places.*got 2"),
        ({"seen": Scale(0.0)}, "an entry for each of its 3 layers on the first axis, or one for all, got shape \\(\\)"),
        ({"seen": Scale(jnp.ones(2))}, "got shape \\(2,\\)"),
        ({"last": Add(jnp.ones(2))}, "an edit must keep the shape of last, \\(\\), got \\(2,\\)"),
    ],
)
def test_what_does_not_fit_is_refused(edits, rule):
    f = lambda x: checkpoint_name(  # noqa: E731
        jax.lax.scan(lambda x, _: (checkpoint_name(x + 1, "seen"), None), x, length=3)[0], "last"
    )
    with pytest.raises(ValueError, match=rule):
        intervene(f)(edits, jnp.float32(0))


def test_a_value_that_may_run_any_number_of_times_is_refused():
    f = lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: checkpoint_name(x, "seen") + 1, x)  # noqa: E731
    with pytest.raises(ValueError, match="must not be inside 'while'"):
        intervene(f)({"seen": Scale(0.0)}, jnp.float32(0))


def test_without_edits_it_is_the_same_program(model):
    both = run, lambda model, tokens: intervene(run)({}, model, tokens)
    plain, edited = (jax.jit(f).lower(model, TOKENS).as_text().partition("\n")[2] for f in both)
    assert edited == plain


@pytest.mark.rotates
@pytest.mark.parametrize(
    "remat", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in ("full", "dots", "attention"))]
)
def test_marks_leave_no_trace_in_what_is_compiled(remat, monkeypatch):
    model = small(remat=remat)

    def compiled():
        jax.clear_caches()
        step = jax.grad(lambda model: jnp.sum(jnp.sin(model(TOKENS))))
        return jax.jit(step).lower(model).compile().cost_analysis()

    marked = compiled()
    with monkeypatch.context() as patched:
        for module in (attention, block, embedding, feedforward, trunk, xla):
            patched.setattr(module, "checkpoint_name", lambda x, name: x)
        plain = compiled()
    jax.clear_caches()  # of what was traced without marks
    assert plain == marked


MESHED = """
import jax, json
import jax.numpy as jnp
from flax import nnx
from flax_transformer.inside import Scale, intervene
from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings
from tests.inside.test_intervene import run, small
model, tokens = small(), jnp.arange(40).reshape(8, 5) % 11
heads = jnp.ones((3, 1, 1, 4, 1)).at[1, 0, 0, 2].set(0)
edits = {"head_outputs": Scale(heads), "neurons": Scale(jnp.full((1, 1, 1, 64), 0.5))}
expected = jax.device_get(jax.jit(intervene(run))(edits, model, tokens))
mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
with jax.set_mesh(mesh):
    laid = jax.device_put(model, tree_shardings(model, mesh))
    found = jax.jit(intervene(run))(edits, laid, jax.device_put(tokens, jax.sharding.PartitionSpec()))
    whole = jax.jit(run)(laid, tokens)
error, effect = abs(jax.device_get(found) - expected).max(), abs(found - whole).max()
print(json.dumps({"error": float(error), "effect": float(effect)}))
"""


@pytest.mark.rotates
def test_a_mesh_is_one_device(tmp_path):
    script = tmp_path / "meshed.py"
    script.write_text(MESHED)
    found = on_eight(script)[0]
    assert found["error"] <= 1e-5
    assert found["effect"] > 1e-3
