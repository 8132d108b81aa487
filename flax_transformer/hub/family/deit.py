"""DeiT checkpoints (Touvron et al. 2020): a ViT with two tokens, and perhaps two heads."""

from dataclasses import replace
from functools import partial

from flax_transformer.hub.family import vit
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import settle_pooler
from flax_transformer.hub.image_call import LAYERS, two_headed
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import linear, parameter
from flax_transformer.models.head import head_of
from flax_transformer.models.vision.deit import DistilledConfig

CONFIG = replace(vit.CONFIG, like=replace(vit.CONFIG.like, tokens=("class_token", "distillation_token")))
read = CONFIG.read


def _distilled(fields: Fields) -> DistilledConfig:
    backbone = read(fields)
    return DistilledConfig(backbone=backbone, head=head_of(backbone, outputs=fields.labels, pool="first"))


HEADS = (*linear("head.output", "cls_classifier"), *linear("distillation_head.output", "distillation_classifier"))

FAMILIES = {
    "deit": Family(
        model_type="deit",
        architectures={
            **vit.architectures(read, "DeiT"),
            "DeiTForImageClassificationWithTeacher": Architecture(
                _distilled, two_headed, HEADS, at="backbone.", ignored=vit.LARGER, uses=("classification",),
                inputs=IMAGES, **LAYERS,
            ),
        },
        table=(*vit.TABLE, *parameter("distillation_token", "embeddings.distillation_token", ones=1)),
        write=CONFIG.write,
        prefix="deit.",
        renamed=vit.RENAMED,
        modules=vit.MODULES,
        settled=partial(settle_pooler, "DeiTModel"),
    )
}  # fmt: skip
