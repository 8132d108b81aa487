"""BLIP checkpoints (Li et al. 2022): to write about images, answer questions, match texts; and each side alone."""

import math
from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import pooled_encoder
from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family import bert
from flax_transformer.hub.family.clip import BUFFERS, TOKENS
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS
from flax_transformer.hub.image_text_call import answerer, captioner, normed_image, pooled_towers, retriever
from flax_transformer.hub.inputs import IMAGES, TOWERS, Signature
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import (
    VECTOR,
    Matrix,
    Table,
    TensorRow,
    as_decoder,
    conv,
    linear,
    norm,
    parameter,
    under,
)
from flax_transformer.hub.towers import ALONE, TOWER_LAYERS, inside
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.blip import SCALE, blip_text, blip_towers, blip_vision, blip_writer
from flax_transformer.models.multimodal.grounded import GroundedConfig
from flax_transformer.models.multimodal.retrieval import RetrievalConfig
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.vision.vit import ViTConfig

VISION_CONFIG = ConfigTable(
    blip_vision(),
    {
        "hidden_size": "embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "attention_dropout": "attention_dropout",
        "image_size": sides("image"),
        "patch_size": sides("patches.patch"),
    },
)
TEXT_CONFIG = ConfigTable(
    blip_text(768, heads=8),
    {name: ours for name, ours in bert.CONFIG.rows.items() if name != "type_vocab_size"}
    | {"encoder_hidden_size": "memory"},
    only={"is_decoder": True, "tie_word_embeddings": True},
    adds={"is_decoder": True},
)


def _sides(fields: Fields) -> tuple[ViTConfig, EncoderConfig]:
    """Read both: what texts attend to is as wide as images' states, whatever else is said."""
    fields.only(tie_word_embeddings=True)
    vision = VISION_CONFIG.read(inside(fields, "vision"))
    return vision, TEXT_CONFIG.read(inside(fields, "text").updated({"encoder_hidden_size": vision.block.embed}))


def _towers(fields: Fields) -> TwoTowersConfig:
    vision, text = _sides(fields)
    scale = math.exp(fields.number("logit_scale_init_value", math.log(SCALE)))
    return replace(_poled(vision, text, fields.integer("projection_dim", 512)), scale=scale)


def _poled(vision: ViTConfig, text: EncoderConfig, width: int) -> TwoTowersConfig:
    return blip_towers(replace(vision, norm="none"), text, width)


def _captioner(fields: Fields) -> Seq2SeqConfig:
    return blip_writer(*_sides(fields))


def _answerer(fields: Fields) -> Seq2SeqConfig:
    vision, text = _sides(fields)
    if vision.block.embed != text.block.embed:
        raise ValueError(
            "what answers attends to questions as others do to images, so both have one hidden_size, got "
            f"{text.block.embed} and {vision.block.embed}"
        )
    return blip_writer(GroundedConfig(vision=vision, text=text), text)


def _retriever(fields: Fields) -> RetrievalConfig:
    vision, text = _sides(fields)
    reader = GroundedConfig(vision=vision, text=text)
    return RetrievalConfig(encoder=reader, width=fields.integer("image_text_hidden_size", 256))


def _vision_alone(fields: Fields) -> ClassifierConfig:
    vision = VISION_CONFIG.read(fields)
    tower = _poled(vision, TEXT_CONFIG.like, 1).vision
    return replace(tower, head=replace(tower.head, outputs=0))


def _text_alone(fields: Fields) -> ClassifierConfig:
    return with_head(TEXT_CONFIG.read(fields), outputs=0, pool="first", dense="tanh")


def write(config: TwoTowersConfig | Seq2SeqConfig | RetrievalConfig) -> dict[str, Any]:
    """Write config.json's fields of any of the classes."""
    more: dict[str, Any] = {}
    if isinstance(config, TwoTowersConfig):
        vision, text = config.vision.backbone, config.text.backbone
        more = {"projection_dim": config.text.head.width, "logit_scale_init_value": math.log(config.scale)}
    elif isinstance(config, RetrievalConfig):
        vision, text = config.encoder.vision, config.encoder.text
        more = {"image_text_hidden_size": config.width}
    else:
        reader, decoder = config.encoder, config.decoder
        vision = getattr(reader, "vision", reader)
        text = EncoderConfig(embedding=config.embedding, block=decoder.block, depth=decoder.depth)
    return {
        "text_config": {"model_type": "blip_text_model", **TEXT_CONFIG.write(text)},
        "vision_config": {"model_type": "blip_vision_model", **VISION_CONFIG.write(vision)},
        **more,
    }


def _marks(fields: Fields) -> Fields:
    """Return config.json as generation reads it: a text ends with the separator, whatever else is said of its end."""
    text = inside(fields, "text")
    ids = {"bos_token_id": 30_522, "pad_token_id": 0, "sep_token_id": 102}
    bos, pad, end = (text.integer(name, default) for name, default in ids.items())
    positions = text.integer("max_position_embeddings", 512)
    return Fields.of({
        "bos_token_id": bos, "decoder_start_token_id": bos, "pad_token_id": pad, "eos_token_id": end,
        "max_position_embeddings": positions,
    })  # fmt: skip


def _grid(fields: Fields) -> tuple[int, int]:
    own = inside(fields, "vision") if fields.get("model_type") == "blip" else fields
    return VISION_CONFIG.read(own).patches.grid


def _vision(ours: str, theirs: str, end: str = "trunk.norm") -> Table:
    """Return the rows of a ViT's, whose last norm is at `end`."""
    layer, qkv = "encoder.layers.{}", tuple(f"trunk.blocks.attention.{part}" for part in ("query", "key", "value"))
    rows = (
        *parameter("class_token", "embeddings.class_embedding", ones=1),
        *conv("patches.patch", "embeddings.patch_embedding"),
        *parameter("positions", "embeddings.position_embedding", ones=1, fit=fitted_positions(_grid)),
        *norm("trunk.blocks.attention_residual.norm", f"{layer}.layer_norm1"),
        TensorRow(tuple(f"{part}.kernel" for part in qkv), f"{layer}.self_attn.qkv.weight", Matrix(1, transposed=True)),
        TensorRow(tuple(f"{part}.bias" for part in qkv), f"{layer}.self_attn.qkv.bias", VECTOR),
        *linear("trunk.blocks.attention.out", f"{layer}.self_attn.projection", inputs=2),
        *norm("trunk.blocks.feedforward_residual.norm", f"{layer}.layer_norm2"),
        *linear("trunk.blocks.feedforward.up", f"{layer}.mlp.fc1"),
        *linear("trunk.blocks.feedforward.down", f"{layer}.mlp.fc2"),
    )
    return (*under(rows, ours, theirs), *norm(end if end != "trunk.norm" else ours + end, f"{theirs}post_layernorm"))


TEXT = (*bert.TABLE, *bert.CROSS)
WRITER = (*as_decoder(under(TEXT, "", "text_decoder.bert.")), *under(bert.OUT, "", "text_decoder.cls.predictions."))
READER = (*_vision("encoder.vision.", "vision_model."), *under(TEXT, "encoder.text.", "text_encoder."))
POOLER = linear("head.dense", "pooler.dense")
TEXT_ALONE = (*under(TEXT, "backbone.", ""), *POOLER)
VISION_ALONE = _vision("backbone.", "", "head.norm")
TABLES = {
    "towers": (
        *parameter("log_scale", "logit_scale"),
        *under(TEXT_ALONE, "text.", "text_model."),
        *linear("text.head.output", "text_projection"),
        *under(VISION_ALONE, "vision.", "vision_model."),
        *linear("vision.head.output", "visual_projection"),
    ),
    "captioner": (*_vision("encoder.", "vision_model."), *WRITER),
    "answerer": (*READER, *WRITER),
    "retriever": (
        *READER,
        *linear("text_head.output", "text_proj"),
        *linear("vision_head.output", "vision_proj"),
        *linear("match_head.output", "itm_head"),
    ),
}
COPIES = {
    "text_decoder.cls.predictions.decoder.weight": "text_decoder.bert.embeddings.word_embeddings.weight",
    "text_decoder.cls.predictions.decoder.bias": "text_decoder.cls.predictions.bias",
}
CAPTION = Signature(("pixel_values", "input_ids"), ("attention_mask",))
ANSWER = Signature(
    ("pixel_values", "input_ids", "decoder_input_ids"), ("attention_mask", "decoder_attention_mask"),
    order=("input_ids", "pixel_values"),
)  # fmt: skip
MATCH = Signature(("input_ids", "pixel_values"), ("attention_mask",), either=True)

FAMILIES = {
    "blip": Family(
        model_type="blip",
        architectures={
            "BlipForConditionalGeneration": Architecture(
                _captioner, captioner, TABLES["captioner"],
                uses=("text2text-generation",), inputs=CAPTION, generation_fields=_marks,
                **ALONE,
            ),
            "BlipForQuestionAnswering": Architecture(
                _answerer, answerer, TABLES["answerer"],
                uses=("text2text-generation",), inputs=ANSWER, generation_fields=_marks,
                **ALONE,
            ),
            "BlipModel": Architecture(
                _towers, pooled_towers, TABLES["towers"], uses=("retrieval",), inputs=TOWERS, **TOWER_LAYERS
            ),
            "BlipForImageTextRetrieval": Architecture(
                _retriever, retriever, TABLES["retriever"], uses=("retrieval",), inputs=MATCH, **ALONE
            ),
        },
        table=(), write=write, ignored=BUFFERS, copies=COPIES, tokens="text_config",
        marks={"sep_token_id": "eos_token_id"},
    ),
    "blip_text_model": Family(
        model_type="blip_text_model",
        architectures={
            "BlipTextModel": Architecture(
                _text_alone, pooled_encoder, base=True, uses=("feature-extraction",), inputs=TOKENS,
            ),
        },
        table=TEXT_ALONE, write=lambda config: TEXT_CONFIG.write(config.backbone), ignored=BUFFERS,
    ),
    "blip_vision_model": Family(
        model_type="blip_vision_model",
        architectures={
            "BlipVisionModel": Architecture(
                _vision_alone, normed_image, base=True, uses=("feature-extraction",), inputs=IMAGES, **LAYERS
            ),
        },
        table=VISION_ALONE, write=lambda config: VISION_CONFIG.write(config.backbone), ignored=BUFFERS,
    ),
}  # fmt: skip
