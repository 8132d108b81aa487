"""Presets are found by name, without a list that somebody must keep."""

import pytest

from flax_transformer.models import preset
from flax_transformer.models.preset import find_preset, module_of, presets
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_base


def test_presets_are_found_and_helpers_are_not():
    known = presets()
    assert known["transformer_base"] is transformer_base
    assert {"transformer_tiny", "transformer_big"} <= set(known)
    assert not {"reorder", "_paper", "find_preset", "presets"} & set(known)
    assert list(known) == sorted(known)


def test_a_config_knows_its_module():
    assert module_of(transformer_base()) is Seq2Seq


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
