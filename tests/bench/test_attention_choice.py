"""What serves attention on the devices here, and why others cannot: traced, in words."""

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.bench.attention_choice import attention_choices, render_choices
from flax_transformer.bench.workload import Size
from flax_transformer.ops import Mask, attention, explain_attention, watch_attention

SMALL = {"batch": 2, "length": 8, "vocab": 32}

pytestmark = pytest.mark.proves(
    "attention", "which kernel serves each call of a model, and why others cannot, in words"
)


def test_what_is_watched_is_what_is_explained():
    q = jnp.ones((2, 5, 4, 8))
    with watch_attention() as seen:
        jax.make_jaxpr(lambda q: attention(q, q, q, Mask(causal=True)))(q)
        with watch_attention() as inner:
            jax.make_jaxpr(lambda q: attention(q, q, q, backend="blockwise"))(q)
    attention(q, q, q)
    ((call, verdicts),) = seen.items()
    assert call == "2 rows, 5 queries, 5 keys, 4 heads of width 8, 4 of keys, float32, causal mask"
    lines = [f"{name:<11}{verdict}" for name, verdict in verdicts.items()]
    assert lines == explain_attention(q, q, q, Mask(causal=True)).splitlines()
    ((_, named),) = inner.items()
    assert (named["blockwise"], named["xla"]) == ("chosen", "can")


@pytest.mark.rotates
def test_every_attention_of_a_program_is_told():
    forward = attention_choices("transformer_tiny", Size(**SMALL))
    assert [call.rpartition("float32, ")[2] for call in forward] == ["lengths", "causal mask"]  # crossing is as reading
    dropped = attention_choices("transformer_tiny", Size(**SMALL, dropout=0.1), "train")
    for call, verdicts in dropped.items():
        assert "dropout of attention weights" in call
        assert verdicts["blockwise"] == "cannot: it takes no dropout of attention weights"
        assert verdicts["xla"] == "chosen"
    assert any("1 queries, 8 keys" in call for call in attention_choices("gpt2", Size(**SMALL), "decode"))


def test_a_function_and_a_model_without_attention_are_explained(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import jax.numpy as jnp\nfrom flax_transformer.ops import attention\n"
        "def mine():\n    return lambda q: attention(q, q, q), (jnp.ones((3, 2, 1, 4)),)\n"
        "def none():\n    return jnp.sin, (jnp.ones(3),)\n"
    )
    assert render_choices(attention_choices(f"{file}:mine", Size())).startswith("3 rows, 2 queries")
    assert "nothing here calls attention" in render_choices(attention_choices(f"{file}:none", Size()))


def test_a_program_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="must be one of forward, train, got 'decode'"):
        attention_choices("bert_base_cased", Size(**SMALL), "decode")


def test_the_command_prints_it(run):
    code, said, _ = run("explain-attention", "gpt2", "--batch", 2, "--length", 8)
    assert code == 0
    assert "8 queries" in said
    assert "xla        chosen" in said
