"""Presets are found by name, without a list that somebody must keep."""

import jax
import pytest

from flax_transformer.models import preset
from flax_transformer.models.preset import abstract, find_preset, module_of, presets
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.transformer import transformer_base
from flax_transformer.nn.config import with_fields


def test_presets_are_found_and_helpers_are_not():
    known = presets()
    assert known["transformer_base"] is transformer_base
    assert {"transformer_tiny", "transformer_big"} <= set(known)
    assert not {"reorder", "_paper", "find_preset", "presets"} & set(known)
    assert list(known) == sorted(known)


def test_a_config_knows_its_module():
    assert module_of(transformer_base()) is Seq2Seq


def test_layers_in_a_loop_and_one_by_one_are_two_programs():
    """In either order: neither an abstract model nor a compiled function of one is taken for the other's."""
    for first, second in ((1, True), (True, 1)):
        run, loops = jax.jit(lambda model, tokens: model(tokens)), []
        for unroll in (first, second):
            config = with_fields(gpt2_tiny(vocab=9), unroll=unroll)
            model = abstract(config)
            assert model.cfg.unroll is unroll
            lowered = run.lower(model, jax.ShapeDtypeStruct((1, 4), "int32"))
            loops.append("stablehlo.while" in lowered.as_text())
        assert loops == [first is not True, second is not True]


def test_a_config_without_a_module_is_refused():
    class Unsaid:
        def build(self, rngs):
            return None

    for config, found in ((object(), "object has none"), (Unsaid(), "that of Unsaid returns NoneType")):
        with pytest.raises(ValueError, match=rf"`build\(self, rngs: nnx.Rngs\)`, which returns the model, {found}"):
            module_of(config)

    class Bare:
        def build(self, rngs):
            return transformer_base().build(rngs)

    assert module_of(Bare()) is Seq2Seq


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"'transformer_bsae'; did you mean transformer_base"):
        find_preset("transformer_bsae")
    with pytest.raises(ValueError, match=r"'xyz'; there are .*transformer_base, transformer_big"):
        preset.find_preset("xyz")
