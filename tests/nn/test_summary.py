"""The table of parameters: complete, consistent, the same as text and HTML, and without touching memory."""

import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import treescope
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_big, transformer_tiny
from flax_transformer.nn import Block, summary, transformer_block
from flax_transformer.train.state import init_state

pytestmark = pytest.mark.proves("summary", "parameters by module, as Flax and treescope count")

CONFIG = transformer_block(embed=8, heads=2, inner=16, cross=True)


def make(config):
    return nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))


@pytest.mark.rotates
def test_counts_and_bytes_are_those_flax_gives():
    table = summary(make(transformer_tiny()))
    shown = re.search(r"Param: ([\d,]+) \((.*?)\)", treescope.render_to_text(make(transformer_tiny())))
    assert f"{table.rows[0].count:,}" == shown[1]
    assert table.rows[0].bytes == 4 * table.rows[0].count
    assert repr(table).splitlines()[-1].split() == ["total", "float32", shown[1], *shown[2].split(), "100.0", "%"]


trees = st.recursive(
    st.builds(
        lambda shape, dtype: np.zeros(shape, dtype),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.sampled_from(["float32", "int8"]),
    ),
    lambda inside: st.dictionaries(st.sampled_from("abcd"), inside, min_size=1, max_size=4),
    max_leaves=12,
)


@pytest.mark.rotates
@given(st.dictionaries(st.sampled_from("abcd"), trees, max_size=4))
def test_every_module_is_the_sum_of_its_parts(tree):
    rows = summary(tree).rows
    for i, row in enumerate(rows):
        inside = []
        for part in rows[i + 1 :]:
            if part.level <= row.level:
                break
            inside.append(part)
        parts = [part for part in inside if part.level == row.level + 1]
        if row.shape is None:
            assert row.count == sum(part.count for part in parts)
            assert row.bytes == sum(part.bytes for part in parts)
            assert set(row.dtypes) == {dtype for part in parts for dtype in part.dtypes}
        else:
            assert not parts
            assert row.count == np.prod(row.shape)
    assert sum(row.shape is not None for row in rows) == len(jax.tree.leaves(tree))
    assert rows[0].bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_shapes_alone_give_the_same_table_and_cost_no_memory():
    block = Block(CONFIG, rngs=nnx.Rngs(0))
    assert summary(jax.eval_shape(lambda: block)) == summary(block)
    before = jax.live_arrays()  # held, so that no collection of garbage in between makes them fewer
    assert summary(make(transformer_big())).rows[0].count > 200_000_000
    assert len(jax.live_arrays()) == len(before)


def test_text_and_html_tell_the_same():
    table = summary(make(transformer_tiny()))
    text, page = repr(table), table._repr_html_()
    root = ET.fromstring(page.partition("</style>")[2])
    lines = [
        "".join(line.itertext()).split() for line in root.iter() if line.tag in ("div", "summary") and line is not root
    ]
    assert sorted(lines) == sorted(line.split() for line in text.splitlines())
    # Every module can be opened and closed, and only the outermost is open at first.
    modules = [row for row in table.rows if row.shape is None]
    assert len(root.findall(".//details")) == len(modules)
    assert page.count("<details open") == 1


def test_names_are_escaped_in_html():
    page = summary({"<script>": np.zeros(2)})._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_axes_come_from_the_sharding_table_and_are_absent_without_a_rule():
    rows = {row.name: row for row in summary(make(transformer_tiny())).rows}
    assert rows["query.kernel"].axes == ("layers", "embed", "heads", None)
    assert summary({"mine": {"weight": np.zeros((2, 3))}}).rows[-1].axes == ()


def test_mixed_number_formats_are_named():
    tree = {"a": {"x": {"w": jnp.zeros(3, "bfloat16")}, "v": jnp.zeros(3)}, "b": jnp.zeros(2, "int8")}
    rows = {row.name: row for row in summary(tree).rows}
    assert rows["total"].dtypes == ("bfloat16", "float32", "int8")
    assert rows["a"].dtypes == ("bfloat16", "float32")
    assert rows["x.w"].bytes == 6


def test_a_whole_training_state_can_be_summarised():
    state = init_state(lambda key: Block(CONFIG, rngs=nnx.Rngs(key)), optax.adam(1e-3), jax.random.key(0))
    rows = {row.name: row for row in summary(state).rows if row.level == 1}
    assert rows["opt_state"].count == 2 * rows["model"].count + 1


@pytest.mark.parametrize("tree", [{}, jnp.zeros(3), None])
def test_odd_trees_have_a_table_too(tree):
    assert repr(summary(tree)).splitlines()[-1].startswith("total")
    ET.fromstring(summary(tree)._repr_html_().partition("</style>")[2])
