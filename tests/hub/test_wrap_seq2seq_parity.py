"""Encoder-decoders made here, wrapped and saved, open in transformers and say the same."""

from dataclasses import replace

import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.bart import bart_base
from flax_transformer.models.text.marian import marian
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import with_fields
from tests.hub.oracle import close, forward, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("transformer", "weights", "as Marian")]

V = 50


def narrow(config):
    config = with_fields(config, embed=16, heads=2, head_width=None, inner=20, depth=2)
    embedding = replace(config.embedding, init_std=0.5)
    return replace(
        config, embedding=embedding, encoder=replace(config.encoder, depth=1),
        source_embedding=None if config.source_embedding is None else replace(embedding, own_table=False),
        output_scale=1.0 if config.output_scale == 1 else 16**-0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "kind"),
    [(t5_small, "T5ForConditionalGeneration"), (bart_base, "BartForConditionalGeneration"), (marian, "MarianMTModel")],
)
def test_a_model_made_here_opens_in_transformers(tmp_path, preset, kind):
    ours = hub.wrap(Seq2Seq(narrow(preset(V)), rngs=nnx.Rngs(0)), kind)
    hub.save(ours, tmp_path)
    ids = random_ids(V - 1, 2, 7)
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    theirs = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    close("logits", forward(theirs, inputs)["logits"], ours(**inputs).logits, inputs)
    np.testing.assert_array_equal(hub.load(tmp_path)(**inputs).logits, ours(**inputs).logits)
