"""Picture-to-text checkpoints: an encoder of images and a decoder of words, each of a family of its own."""

from functools import cache

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import IMAGES, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.registry import families
from flax_transformer.hub.side_call import encoded_to_text
from flax_transformer.hub.sides import Encoders, Sides


def _encoders() -> Encoders:
    """List the families that encode images into hidden states, and the class of each that is nearest to just that."""
    found = {}
    for kind, family in families().items():
        able = [each for each in family.architectures.values() if each.inputs.needs == IMAGES.needs]
        able = [each for each in able if {"feature-extraction", "classification"} & set(each.uses)]
        if able and family.composed is None:
            found[kind] = family, next((each for each in able if "feature-extraction" in each.uses), able[0])
    return found


SIDES = Sides(_encoders)


@cache
def composed(fields: Fields) -> Family:
    """Return the family of checkpoints with these two sides."""
    return SIDES.composed(FAMILIES["vision-encoder-decoder"], fields)


IMAGES_TO_TEXT = Signature(("pixel_values", "decoder_input_ids"), ("decoder_attention_mask",))
FAMILIES = {
    "vision-encoder-decoder": Family(
        model_type="vision-encoder-decoder",
        architectures={
            "VisionEncoderDecoderModel": Architecture(
                SIDES.read,
                encoded_to_text,
                base=True,
                uses=("text2text-generation",),
                inputs=IMAGES_TO_TEXT,
                ignored=(r"^encoder\.pooler\.", r"^encoder\.embeddings\.mask_token$"),
            )
        },
        table=(),
        write=SIDES.write,
        composed=composed,
        looked_up={"decoder_input_ids": "embedding.token"},
    )
}
