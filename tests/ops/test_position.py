import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.nn import Rotary
from flax_transformer.ops import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    YarnScaling,
    alibi,
    attention,
    causal_relative_buckets,
    relative_buckets,
    rotary,
    rotary_frequencies,
    rotary_sections,
    sinusoidal,
    sinusoidal_halves,
    sinusoidal_spanning,
)

pytestmark = pytest.mark.proves(
    "positions",
    "sinusoidal, rotary with Llama 3, dynamic, YaRN and LongRoPE scaling, of several ids (M-RoPE), ALiBi, T5 buckets",
)


@pytest.mark.parametrize("width", [2, 64, 130])
def test_sinusoidal_equals_the_paper_in_double_precision(width):
    position = np.arange(4096)
    ours = np.array(jax.jit(sinusoidal, static_argnums=1)(jnp.asarray(position), width))
    for channel in range(0, width, 2):
        angle = position / 10000 ** (channel / width)
        np.testing.assert_allclose(ours[:, channel], np.sin(angle), atol=2e-6)
        np.testing.assert_allclose(ours[:, channel + 1], np.cos(angle), atol=2e-6)


def test_halves_hold_the_same_waves_in_another_order():
    positions = jnp.array([[0, 3], [700, 12]])
    waves, halves = sinusoidal(positions, 10), sinusoidal_halves(positions, 10)
    np.testing.assert_array_equal(jnp.concatenate([waves[..., ::2], waves[..., 1::2]], -1), halves)


@pytest.mark.parametrize("width", [2, 4, 64])
def test_spanning_waves_reach_the_longest(width):
    position = np.arange(1024)
    ours = np.array(sinusoidal_spanning(jnp.asarray(position), width))
    for pair in range(half := width // 2):
        angle = position * np.exp(-np.log(10000) * pair / max(half - 1, 1))
        np.testing.assert_allclose(ours[:, pair], np.sin(angle), atol=2e-6)
        np.testing.assert_allclose(ours[:, half + pair], np.cos(angle), atol=2e-6)


@pytest.mark.parity
def test_halves_equal_marian():
    torch = pytest.importorskip("torch")
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    table = marian.MarianSinusoidalPositionalEmbedding(600, 64)
    weight = table.create_weight() if hasattr(table, "create_weight") else table._init_weight()
    weight = torch.as_tensor(table.weight if weight is None else weight).detach().numpy()
    np.testing.assert_allclose(sinusoidal_halves(jnp.arange(600), 64), weight, atol=1e-6)


@pytest.mark.parametrize("function", [sinusoidal, sinusoidal_halves])
def test_odd_widths_are_refused(function):
    with pytest.raises(ValueError, match="even, got 7"):
        function(jnp.arange(3), 7)
    with pytest.raises(ValueError, match="even, got 7"):
        rotary_frequencies(7)


@pytest.mark.parity
@pytest.mark.parametrize(
    "scaling", [None, LinearScaling(factor=3.0), Llama3Scaling(factor=4.0, low=1.0, high=3.0, original_length=64)]
)
def test_rotary_equals_llama(scaling):
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    base, parameters = 5000.0, {"rope_type": "default"}
    if isinstance(scaling, LinearScaling):
        parameters = {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        parameters = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.original_length,
        }
    frequencies = (scaling or rotary_frequencies)(16, base)
    parameters["rope_theta"] = base
    config = llama.LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=parameters)
    q = np.random.default_rng(0).normal(size=(2, 30, 4, 16)).astype(np.float32)
    position = np.stack([np.arange(30), np.arange(5, 35)])
    turn = llama.LlamaRotaryEmbedding(config)
    cos, sin = turn(torch.tensor(q), torch.tensor(position))
    expected, _ = llama.apply_rotary_pos_emb(torch.tensor(q), torch.tensor(q), cos, sin, unsqueeze_dim=2)
    np.testing.assert_array_max_ulp(np.asarray(frequencies), turn.inv_freq.numpy(), maxulp=2)
    np.testing.assert_allclose(rotary(jnp.asarray(q), jnp.asarray(position), frequencies), expected.numpy(), atol=1e-5)


def test_rotary_frequencies_do_not_depend_on_compilation():
    yarn = YarnScaling(factor=8.0, original_length=512)
    for function in (rotary_frequencies, Llama3Scaling(), LinearScaling(factor=2.0), yarn):
        compiled = jax.jit(function, static_argnums=(0, 1))(96, 500000.0)
        np.testing.assert_array_equal(function(96, 500000.0), compiled)


def test_a_rotary_base_by_length_is_each_rows_own():
    """Of rows side by side each turns as it does alone, and none does otherwise up to the original length."""
    scaling = Rotary(base=100.0, frequencies=DynamicScaling(factor=2.0, original_length=8))
    q, positions = jax.random.normal(jax.random.key(0), (2, 8, 2, 8)), jnp.arange(8) + jnp.array([[0], [5]])
    (both,) = scaling.turn([q], positions)
    for i in range(2):
        np.testing.assert_array_equal(both[i], scaling.turn([q[i]], positions[i])[0])
    np.testing.assert_array_equal(both[0], rotary(q[0], positions[0], rotary_frequencies(8, 100.0)))
    assert np.abs(both[1] - rotary(q[1], positions[1], rotary_frequencies(8, 100.0))).max() > 0.1


def test_a_part_of_a_head_turns_and_the_rest_stays():
    q = jax.random.normal(jax.random.key(0), (5, 2, 8))
    (turned,) = Rotary(width=4).turn([q], jnp.arange(5))
    np.testing.assert_array_equal(turned[..., 4:], q[..., 4:])
    np.testing.assert_array_equal(turned[..., :4], rotary(q[..., :4], jnp.arange(5), rotary_frequencies(4)))
    with pytest.raises(ValueError, match=r"channels turn in pairs, .* got 3"):
        Rotary(width=3)


def test_scalings_are_values_and_check_themselves():
    assert Llama3Scaling(factor=2.0) == Llama3Scaling(factor=2.0) != Llama3Scaling(factor=4.0)
    assert len({LinearScaling(factor=2.0), LinearScaling(factor=2.0)}) == 1
    with pytest.raises(ValueError, match=r"low between 0 and high, got .*low=4.0, high=4.0"):
        Llama3Scaling(low=4.0)
    with pytest.raises(ValueError, match="above 0, got 0"):
        LinearScaling(factor=0.0)


def test_rotary_scores_depend_on_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 7, 2, 8))
    turned = [
        jnp.einsum("tnh,snh->nts", *(rotary(x, jnp.arange(7) + start, rotary_frequencies(8)) for x in (q, k)))
        for start in (0, 40)
    ]
    np.testing.assert_allclose(*turned, atol=1e-4)


def test_rotary_keeps_the_type_and_asks_for_half_the_width():
    x = jnp.ones((1, 3, 2, 8), jnp.bfloat16)
    assert rotary(x, jnp.arange(3), rotary_frequencies(8)).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="got 2 for H=8"):
        rotary(x, jnp.arange(3), rotary_frequencies(4))


@pytest.mark.parametrize("heads", [1, 8, 12, 16])
@pytest.mark.parity
def test_alibi_equals_bloom(heads):
    torch = pytest.importorskip("torch")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    expected = bloom.build_alibi_tensor(torch.ones(1, 10), heads, torch.float32).reshape(heads, 1, 10).numpy()
    # Bloom adds slope × key position: the same up to a constant in each row, which the softmax drops.
    ours = np.array(alibi(heads, 1, 10))
    np.testing.assert_allclose(ours - ours[..., :1], expected, atol=1e-5)


def test_alibi_offset_is_a_slice():
    np.testing.assert_array_equal(alibi(4, 2, 9, offset=jnp.array(3)), alibi(4, 9, 9)[:, 3:5])
    np.testing.assert_array_equal(alibi(4, 2, 9), alibi(4, 9, 9)[:, 7:])
    assert attention(*(jnp.ones((9, 4, 2)),) * 3, None, alibi(4, 9, 9)).shape == (9, 4, 2)


@pytest.mark.parity
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 64), (8, 20)])
def test_buckets_equal_t5(buckets, distance):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = np.arange(-400, 401)
    for ours, both in ((relative_buckets, True), (causal_relative_buckets, False)):
        expected = t5.T5Attention._relative_position_bucket(torch.tensor(relative), both, buckets, distance)
        np.testing.assert_array_equal(ours(jnp.asarray(relative), buckets=buckets, max_distance=distance), expected)


SECTIONS = [(1, 1, 1), (2, 3, 3), (16, 24, 24), (5, 2), (4,)]


@pytest.mark.rotates
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "by length"])
@pytest.mark.parametrize("sections", SECTIONS)
def test_ids_that_agree_are_one_position(sections, scaled):
    draw = np.random.default_rng(sum(sections))
    x = jnp.asarray(draw.standard_normal((2, 7, 3, 2 * sum(sections)), dtype=np.float32))
    positions = jnp.asarray(draw.integers(0, 5_000, (2, 7)))
    several = jnp.repeat(positions[..., None], len(sections), axis=-1)
    scaling = {"frequencies": DynamicScaling(factor=2.0, original_length=64)} if scaled else {}
    (plain,), (ours,) = Rotary(**scaling).turn([x], positions), Rotary(**scaling, sections=sections).turn([x], several)
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_array_equal(Rotary(**scaling, sections=sections).turn([x], positions)[0], plain)


@pytest.mark.rotates
@pytest.mark.parametrize("sections", SECTIONS[:-1])
def test_an_id_turns_the_pairs_of_its_section_alone(sections):
    half = sum(sections)
    x = jax.random.normal(jax.random.key(0), (4, 1, 2 * half))
    positions = jnp.arange(12).reshape(4, 3)[:, : len(sections)]
    frequencies = rotary_frequencies(2 * half)
    base = rotary_sections(x, positions, frequencies, sections)
    for which, end in enumerate(np.cumsum(sections)):
        moved = rotary_sections(x, positions.at[:, which].add(3), frequencies, sections)
        changed = np.abs(np.asarray(moved - base)).max((0, 1)) > 1e-6
        own = np.arange(half)
        own = (own < end) & (own >= end - sections[which])
        assert not changed[~np.tile(own, 2)].any()
        assert changed[np.tile(own, 2)].any()


def test_products_depend_on_the_distance_of_each_id():
    sections, draw = (2, 3, 3), jax.random.key(0)
    q, k = jax.random.normal(draw, (2, 1, 1, 16))
    turn = lambda x, at: rotary_sections(x, jnp.array([at]), rotary_frequencies(16), sections)  # noqa: E731
    near = jnp.sum(turn(q, [3, 5, 9]) * turn(k, [1, 2, 8]))
    far = jnp.sum(turn(q, [13, 25, 39]) * turn(k, [11, 22, 38]))
    np.testing.assert_allclose(near, far, rtol=1e-4)


@pytest.mark.parametrize(("sections", "ids"), [((1, 1), 3), ((1, 1, 2), 3), ((2, 3, 4), 3)])
def test_sections_must_fit(sections, ids):
    with pytest.raises(ValueError, match=r"sections must be one for each of 3 position ids and add up to H/2=3"):
        rotary_sections(jnp.ones((2, 1, 6)), jnp.zeros((2, ids), int), rotary_frequencies(6), sections)
    with pytest.raises(ValueError, match="positions of several ids need sections, got positions of shape"):
        Rotary().turn([jnp.ones((2, 1, 6))], jnp.zeros((2, ids), int))
