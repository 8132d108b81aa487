"""wav2vec 2.0 checkpoints (Baevski et al. 2020)."""

from typing import Any

from flax_transformer.hub.audio_call import (
    samples_classifier,
    samples_contrast,
    samples_ctc,
    samples_model,
    samples_speaker,
)
from flax_transformer.hub.check import check_contrast, check_samples
from flax_transformer.hub.config import ConfigTable, choice
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS
from flax_transformer.hub.inputs import SAMPLES, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Kernel, TensorRow, conv, linear, norm, parameter
from flax_transformer.models.head import ClassifierConfig, head_of, with_head
from flax_transformer.models.speech.classify import AudioClassifierConfig
from flax_transformer.models.speech.contrast import ContrastConfig
from flax_transformer.models.speech.ctc import TranscriberConfig
from flax_transformer.models.speech.speaker import SpeakerConfig, SpeakerHeadConfig
from flax_transformer.models.speech.wav2vec2 import Wav2Vec2Config, wav2vec2_base

CONVOLUTIONS = 16
"""That a front, or a head, may have."""


def _of_layers(fields: Fields, name: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Read a number of each of some convolutions."""
    found = fields.get(name, usual)
    whole = isinstance(found, list | tuple) and all(type(each) is int for each in found)
    if not whole or not 1 <= len(found) <= CONVOLUTIONS:
        raise ValueError(f"config.json must give {name} as 1 to {CONVOLUTIONS} whole numbers, it is {found!r}")
    return tuple(found)


def _front(fields: Fields) -> dict[str, Any]:
    widths = _of_layers(fields, "conv_dim", (512,) * 7)
    masks = (fields.number("mask_time_prob", 0.05), fields.number("mask_feature_prob", 0.0))
    before = () if len({*widths}) == 1 else widths[:-1]
    return {"front.before": before, "front.embed": widths[-1], ".mask_token": any(masks)}


def _widths(config: Wav2Vec2Config) -> dict[str, Any]:
    return {"conv_dim": list(config.front.widths), "mask_time_prob": 0.05 if config.mask_token else 0.0}


CONFIG = ConfigTable(
    wav2vec2_base().backbone,
    {
        "hidden_size": "block.embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "hidden_dropout": ("block.dropout", ".dropout"),
        "activation_dropout": "activation_dropout",
        "attention_dropout": "attention_dropout",
        "feat_proj_dropout": ".front_dropout",
        "initializer_range": "block.init_std",
        "layer_norm_eps": "norm_eps",
        "feat_extract_norm": choice("front.norm", {"group": "first", "layer": "every"}),
        "conv_stride": "front.strides",
        "conv_kernel": "front.windows",
        "conv_bias": "front.bias",
        "num_conv_pos_embeddings": ".window",
        "num_conv_pos_embedding_groups": ".groups",
        "do_stable_layer_norm": choice("norm_position", {False: "post", True: "pre"}),
    },
    only={"feat_extract_activation": "gelu", "add_adapter": False, "adapter_attn_dim": None},
    adds={"feat_extract_activation": "gelu", "num_feat_extract_layers": 7},
    reads=_front,
    writes=_widths,
)
read = CONFIG.read


def write(config: Wav2Vec2Config) -> dict[str, Any]:
    """Make config.json's fields of our config."""
    return {**CONFIG.write(config), "num_feat_extract_layers": len(config.front.windows)}


def _ctc(fields: Fields) -> TranscriberConfig:
    backbone, rate = read(fields), fields.number("final_dropout", 0.1)
    head = head_of(backbone, outputs=fields.integer("vocab_size", 32), dropout=rate)
    return TranscriberConfig(backbone=backbone, head=head)


def _said(config: TranscriberConfig) -> dict[str, Any]:
    return {"vocab_size": config.head.outputs, "final_dropout": config.head.dropout}


def _classifier(fields: Fields) -> AudioClassifierConfig:
    fields.only(use_weighted_layer_sum=False)
    backbone, width = read(fields), fields.integer("classifier_proj_size", 256)
    head = head_of(backbone, outputs=fields.labels, pool="mean", dense="identity", dense_width=width)
    return AudioClassifierConfig(backbone=backbone, head=head)


def _frames(fields: Fields) -> ClassifierConfig:
    fields.only(use_weighted_layer_sum=False)
    return with_head(read(fields), outputs=fields.labels)


def _speaker(fields: Fields) -> SpeakerConfig:
    fields.only(use_weighted_layer_sum=False)
    backbone = read(fields)
    widths, windows, dilations = (_of_layers(fields, f"tdnn_{name}", usual) for name, usual in TDNN.items())
    head = SpeakerHeadConfig(
        embed=backbone.block.embed, widths=widths, windows=windows, dilations=dilations,
        outputs=fields.integer("xvector_output_dim", 512), speakers=fields.labels, precision=backbone.front.precision,
    )  # fmt: skip
    return SpeakerConfig(backbone=backbone, head=head)


def _contrast(fields: Fields) -> ContrastConfig:
    said = {ours: fields.number(theirs, usual) for theirs, (ours, usual) in CONTRAST.items()}
    return ContrastConfig(backbone=read(fields), **said)


TDNN = {"dim": (512, 512, 512, 512, 1500), "kernel": (5, 3, 3, 1, 1), "dilation": (1, 2, 3, 1, 1)}
CONTRAST = {
    "num_codevector_groups": ("groups", 2), "num_codevectors_per_group": ("codes", 320),
    "codevector_dim": ("code_width", 256), "proj_codevector_dim": ("outputs", 256),
    "feat_quantizer_dropout": ("dropout", 0.0), "contrastive_logits_temperature": ("temperature", 0.1),
    "diversity_loss_weight": ("diversity", 0.1),
}  # fmt: skip
"""Fields of config.json, ours, and what they are where they are not said."""


def _said_speaker(config: SpeakerConfig) -> dict[str, Any]:
    head = config.head
    sizes = {"dim": head.widths, "kernel": head.windows, "dilation": head.dilations}
    return {f"tdnn_{name}": list(each) for name, each in sizes.items()} | {
        "xvector_output_dim": head.outputs, "num_labels": head.speakers,
    }  # fmt: skip


LAYER, PLACES = "encoder.layers.{}", "encoder.pos_conv_embed.conv"
TABLE = (
    *(
        row
        for i in range(CONVOLUTIONS)
        for row in (
            *conv(f"front.conv{i + 1}", f"feature_extractor.conv_layers.{i}.conv"),
            *norm(f"front.norm{i + 1}", f"feature_extractor.conv_layers.{i}.layer_norm"),
        )
    ),
    *norm("front_norm", "feature_projection.layer_norm"),
    *linear("project", "feature_projection.projection"),
    *parameter("mask_token", "masked_spec_embed"),
    *parameter("places.scale", f"{PLACES}.weight_g", ones=2),
    TensorRow(("places.kernel",), f"{PLACES}.weight_v", Kernel()),
    *parameter("places.bias", f"{PLACES}.bias"),
    # The one norm of theirs is before the blocks or, where these have theirs first, behind them.
    *norm("norm", "encoder.layer_norm"),
    *norm("trunk.norm", "encoder.layer_norm"),
    *(
        row
        for part in ("query", "key", "value")
        for row in linear(f"trunk.blocks.attention.{part}", f"{LAYER}.attention.{part[0]}_proj")
    ),
    *linear("trunk.blocks.attention.out", f"{LAYER}.attention.out_proj", inputs=2),
    *norm("trunk.blocks.attention_residual.norm", f"{LAYER}.layer_norm"),
    *linear("trunk.blocks.feedforward.up", f"{LAYER}.feed_forward.intermediate_dense"),
    *linear("trunk.blocks.feedforward.down", f"{LAYER}.feed_forward.output_dense"),
    *norm("trunk.blocks.feedforward_residual.norm", f"{LAYER}.final_layer_norm"),
)
HEAD = (*linear("head.dense", "projector"), *linear("head.output", "classifier"))
SPEAKER = (
    *linear("head.project", "projector"),
    *(row for i in range(CONVOLUTIONS) for row in linear(f"head.conv{i + 1}", f"tdnn.{i}.kernel", inputs=2)),
    *linear("head.dense", "feature_extractor"),
    *linear("head.output", "classifier"),
    *parameter("head.speakers", "objective.weight"),
)
CODES = (
    *linear("choose", "quantizer.weight_proj"),
    *parameter("codes", "quantizer.codevectors", ones=1),
    *linear("project_hidden", "project_hid"),
    *linear("project_codes", "project_q"),
)
PRETRAINING = r"^(quantizer|project_q|project_hid)\."
CONTRASTED = Signature(SAMPLES.needs, (*SAMPLES.takes, "mask_time_indices", "sampled_negative_indices"))
SHARED = {"inputs": SAMPLES, "check": check_samples, **LAYERS}

FAMILIES = {
    "wav2vec2": Family(
        model_type="wav2vec2",
        architectures={
            "Wav2Vec2Model": Architecture(
                read, samples_model, base=True,
                ignored=(r"^(lm_head|projector|classifier)\.", PRETRAINING), uses=("feature-extraction",), **SHARED,
            ),
            "Wav2Vec2ForCTC": Architecture(
                _ctc, samples_ctc, linear("head.output", "lm_head"), _said, at="backbone.",
                uses=("automatic-speech-recognition",),
                ignored=(PRETRAINING,), **SHARED,
            ),
            "Wav2Vec2ForSequenceClassification": Architecture(
                _classifier, samples_classifier, HEAD,
                lambda config: {"classifier_proj_size": config.head.dense_width}, at="backbone.",
                uses=("classification",),
                ignored=(r"^lm_head\.", PRETRAINING), **SHARED,
            ),
            "Wav2Vec2ForAudioFrameClassification": Architecture(
                _frames, samples_ctc, linear("head.output", "classifier"), at="backbone.",
                uses=("frame-classification",), ignored=(r"^(lm_head|projector)\.", PRETRAINING), **SHARED,
            ),
            "Wav2Vec2ForXVector": Architecture(
                _speaker, samples_speaker, SPEAKER, _said_speaker, at="backbone.", uses=("speaker-verification",),
                ignored=(r"^lm_head\.", PRETRAINING), **SHARED,
            ),
            "Wav2Vec2ForPreTraining": Architecture(
                _contrast, samples_contrast, CODES,
                lambda config: {name: getattr(config, ours) for name, (ours, _) in CONTRAST.items()}, at="backbone.",
                uses=("contrastive-pretraining",), **{**SHARED, "inputs": CONTRASTED, "check": check_contrast},
            ),
        },
        table=TABLE,
        write=write,
        prefix="wav2vec2.",
        renamed={r"\.parametrizations\.weight\.original0$": ".weight_g",
                 r"\.parametrizations\.weight\.original1$": ".weight_v"},
    )
}  # fmt: skip
