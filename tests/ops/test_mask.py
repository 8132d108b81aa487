import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Mask


def literal(mask, T, S):
    return np.array(mask.materialize(T, S)).astype(int).squeeze().tolist()


def test_nothing_hidden_is_no_array():
    assert Mask().materialize(3, 4) is None


def test_causal_is_right_aligned():
    assert literal(Mask(causal=True), 2, 4) == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_window_counts_keys_to_each_side():
    assert literal(Mask(window=(1, 0)), 3, 3) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert Mask(window=2).window == (2, 2)


def test_lengths_hide_the_tail_of_each_row():
    assert literal(Mask(lengths=jnp.array([0, 2])), 1, 3) == [[0, 0, 0], [1, 1, 0]]


def test_segments_see_their_own():
    ids = jnp.array([[1, 1, 2, 0]])
    assert literal(Mask(segments=(ids, ids)), 4, 4) == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_offset_places_the_first_query():
    assert literal(Mask(causal=True, offset=1), 2, 4) == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert literal(Mask(causal=True, offset=jnp.array([0, 2])), 1, 3) == [[1, 0, 0], [1, 1, 1]]


@pytest.mark.rotates
def test_combination_hides_what_either_hides():
    dense = jax.random.bernoulli(jax.random.key(0), 0.7, (2, 1, 4, 5))
    parts = [
        Mask(causal=True),
        Mask(window=(1, 3)),
        Mask(window=(2, 0)),
        Mask(lengths=jnp.array([5, 3])),
        Mask(lengths=jnp.array([2, 4])),
        Mask(dense=dense),
        Mask(dense=~dense[:1]),
        Mask(segments=(jnp.ones((2, 4), int), jnp.array([[1, 1, 1, 1, 0]] * 2))),
    ]
    for a in parts:
        for b in parts:
            if a.segments is not None and b.segments is not None:
                continue
            assert ((a & b).materialize(4, 5) == (a.materialize(4, 5) & b.materialize(4, 5))).all()
    assert (parts[0] & None) is parts[0]


def test_a_union_shows_what_either_shows():
    """Also of unions, within unions and cut by other masks; several lengths are several prefixes."""
    dense = jax.random.bernoulli(jax.random.key(0), 0.5, (2, 1, 4, 5))
    parts = [Mask(causal=True), Mask(lengths=jnp.array([3, 0])), Mask(dense=dense), Mask(window=1)]
    parts += [parts[0] | parts[1], (parts[2] | parts[3]) & parts[1]]
    seen = lambda mask: np.broadcast_to(mask.materialize(4, 5), (2, 1, 4, 5))  # noqa: E731
    for a in parts:
        for b in parts:
            np.testing.assert_array_equal(seen(a | b), seen(a) | seen(b))
            np.testing.assert_array_equal(seen(a & b), seen(a) & seen(b))
    assert (parts[0] | None).materialize(4, 5) is None
    assert (parts[0] | Mask()).materialize(4, 5) is None


def test_a_prefix_is_seen_by_all_of_it_and_the_rest_is_causal():
    prefix = Mask(causal=True) | Mask(lengths=jnp.array([2, 0]))
    assert literal(prefix, 3, 3) == [[[1, 1, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert literal(jax.vmap(lambda mask: mask)(prefix), 3, 3) == literal(prefix, 3, 3)
    assert prefix.positional()
    assert not (Mask() | Mask(lengths=jnp.array([1]))).positional()


def test_one_offset_serves_all_of_a_union():
    moved = (Mask(causal=True) | Mask(window=1)) & Mask(offset=2)
    assert literal(moved, 1, 5) == literal((Mask(causal=True) | Mask(window=1)).at(2), 1, 5) == [1, 1, 1, 1, 0]
    with pytest.raises(ValueError, match="only one of two combined masks may have `offset`"):
        moved | Mask(offset=1)


def test_fields_of_a_union_must_fit_too():
    with pytest.raises(ValueError, match="mask lengths must broadcast"):
        (Mask(causal=True) | Mask(lengths=jnp.ones(3, int))).check((2,), 1, 4, 4)


@pytest.mark.parametrize("field", ["segments", "offset"])
def test_two_segments_or_offsets_do_not_combine(field):
    ids = jnp.zeros((1, 2), int)
    mask = Mask(segments=(ids, ids)) if field == "segments" else Mask(offset=1)
    with pytest.raises(ValueError, match=f"may have `{field}`"):
        mask & mask


def test_negative_window_is_refused():
    with pytest.raises(ValueError, match=r"at least 0, got \(-1, -1\)"):
        Mask(window=-1)


def test_a_mask_passes_through_transforms():
    mask = Mask(causal=True, window=2, lengths=jnp.array([2, 3]), offset=jnp.array([0, 1]))
    eager = mask.materialize(3, 4)
    assert (jax.jit(lambda m: m.materialize(3, 4))(mask) == eager).all()
    assert (jax.vmap(lambda m: m.materialize(3, 4))(mask) == eager).all()
    _, scanned = jax.lax.scan(lambda c, m: (c, m.materialize(3, 4)), 0, mask)
    assert (scanned == eager).all()


def test_static_fields_decide_recompilation_and_leaves_do_not():
    count = 0

    @jax.jit
    def trace(mask):
        nonlocal count
        count += 1
        return mask.materialize(2, 3)

    for offset in range(3):
        trace(Mask(causal=True, offset=offset))
    assert count == 1
    trace(Mask(causal=True, window=1, offset=0))
    assert count == 2


@pytest.mark.rotates
def test_tree_functions_may_put_anything_in_the_leaves():
    mask = Mask(causal=True, lengths=jnp.array([2, 3]))
    axes = jax.tree.map(lambda _: 0, mask)
    assert axes.lengths == 0
    assert axes.causal
    assert jax.vmap(lambda m: m.materialize(2, 3), in_axes=(axes,))(mask).shape == (2, 1, 2, 3)
    assert jax.eval_shape(lambda m: m, mask).lengths.shape == (2,)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(mask)]
    assert paths == [".lengths"]
