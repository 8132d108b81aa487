"""Texts to text (Rothe et al. 2020, https://arxiv.org/abs/1907.12461): an encoder and a decoder, each of a family
of its own, BERT with BERT or GPT-2.
"""

from functools import cache

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import EMBEDDED, TEXT_TO_TEXT, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.registry import families, find_use
from flax_transformer.hub.side_call import encoded_to_text
from flax_transformer.hub.sides import Encoders, Sides

ENCODERS = ("bert", "distilbert", "electra")
"""Encoders of texts whose positions count all tokens, padding too, and that need no more than tokens and their mask."""


def _encoders() -> Encoders:
    return {kind: (families()[kind], _class(kind)) for kind in ENCODERS}


def _class(kind: str) -> Architecture:
    return families()[kind].architectures[find_use(kind, "feature-extraction")]


SIDES = Sides(_encoders)
NEEDED = Signature(("input_ids", "decoder_input_ids"), ("attention_mask", "decoder_attention_mask", EMBEDDED),
                   order=("input_ids", *TEXT_TO_TEXT.takes))  # fmt: skip


@cache
def composed(fields: Fields) -> Family:
    """Return the family of checkpoints with these two sides."""
    return SIDES.composed(FAMILIES["encoder-decoder"], fields)


FAMILIES = {
    "encoder-decoder": Family(
        model_type="encoder-decoder",
        architectures={
            "EncoderDecoderModel": Architecture(
                SIDES.read, encoded_to_text, base=True, uses=("text2text-generation",), inputs=NEEDED,
                ignored=(r"^encoder\.pooler\.",),
            )
        },
        table=(),
        write=SIDES.write,
        composed=composed,
        looked_up={"input_ids": "encoder.embedding.token", "decoder_input_ids": "embedding.token"},
    )
}  # fmt: skip
