"""ResNet checkpoints (He et al. 2015)."""

from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable, choice
from flax_transformer.hub.feature_map import backbone, channels_first, map_classifier, of_maps
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, batch_norm, conv, linear
from flax_transformer.models.vision.resnet import resnet50

STAGES = 8
"""As many stages as a checkpoint may have."""

CONFIG = ConfigTable(
    resnet50().backbone,
    {
        "num_channels": "channels",
        "embedding_size": "stem",
        "hidden_sizes": "widths",
        "depths": "depths",
        "layer_type": choice("block", {"basic": "basic", "bottleneck": "bottleneck"}),
        "hidden_act": "activation",
        "downsample_in_first_stage": "halve_first",
        "downsample_in_bottleneck": "halve_early",
    },
    reads=lambda fields: {"small": fields.flag("small_stem", False)},
    writes=lambda config: {"small_stem": True} if config.small else {},
)
"""`small_stem` is a field of ours: `transformers` has no such stem, and refuses its kernel."""


def table(*, counted: bool) -> Table:
    """Return the rows of a ResNet.

    Args:
      counted: whether its batch norms count batches, as those that are not frozen do.
    """

    def layer(ours: str, theirs: str) -> Table:
        return conv(f"{ours}.convolution", f"{theirs}.convolution") + batch_norm(
            f"{ours}.norm", f"{theirs}.normalization", counted=counted
        )

    rows = layer("stem", "embedder.embedder")
    for stage in range(STAGES):
        for part, number in (("first", "0"), ("rest", "{1}")):
            ours, theirs = f"stage{stage + 1}.{part}", f"encoder.stages.{stage}.layers.{number}"
            for i, name in enumerate(("first", "second", "third")):
                rows += layer(f"{ours}.{name}", f"{theirs}.layer.{i}")
            rows += layer(f"{ours}.shortcut", f"{theirs}.shortcut")
    return rows


def pooled_map(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return the last feature map and its mean, as ResNetModel does."""
    found = channels_first(model.feature_map(images_of(inputs), key=key))
    return ModelOutput(last_hidden_state=found, pooler_output=found.mean((-2, -1), keepdims=True))


OUTPUT = linear("head.output", "classifier.1")

FAMILIES = {
    "resnet": Family(
        model_type="resnet",
        architectures={
            "ResNetModel": of_maps(
                Architecture(CONFIG.read, pooled_map, base=True, ignored=(r"^classifier\.",),
                    uses=("feature-extraction",))
            ),
            "ResNetForImageClassification": of_maps(
                classifier(CONFIG.read, map_classifier, OUTPUT, pool="mean", uses=("classification",))
            ),
            "ResNetBackbone": backbone(CONFIG.read, lambda config: len(config.depths), base=True,
                ignored=(r"^classifier\.",)),
        },
        table=table(counted=True),
        write=CONFIG.write,
        prefix="resnet.",
    )
}  # fmt: skip
