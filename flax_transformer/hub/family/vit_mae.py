"""Masked autoencoders (He et al. 2021): an encoder like ViT's and a decoder."""

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import vit
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, autoencoder, autoencoder_model, encoder_layers
from flax_transformer.hub.inputs import Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import linear, norm, parameter
from flax_transformer.models.vision.vit_mae import MAEConfig, mae_base
from flax_transformer.nn import with_fields

WHOLE = with_fields(mae_base(), out_bias=True)
CONFIG = ConfigTable(WHOLE.encoder, {**vit.CONFIG.rows, "mask_ratio": "mask_ratio"})
DECODER = ConfigTable(
    WHOLE.decoder,
    {
        "decoder_hidden_size": "embed",
        "decoder_num_hidden_layers": "depth",
        "decoder_num_attention_heads": "heads",
        "decoder_intermediate_size": "inner",
        **{name: vit.CONFIG.rows[name] for name in ("hidden_act", "layer_norm_eps", "initializer_range", "qkv_bias")},
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
)
read = CONFIG.read


def _whole(fields: Fields) -> MAEConfig:
    return MAEConfig(encoder=read(fields), decoder=DECODER.read(fields))


ENCODER = Signature(("pixel_values",), ("noise",))
HEAD = (
    *linear("project", "decoder.decoder_embed"),
    *parameter("mask_token", "decoder.mask_token", ones=1),
    *parameter("positions", "decoder.decoder_pos_embed", ones=1),
    *vit.blocks("decoder.blocks", "decoder.decoder_layers"),
    *norm("decoder.norm", "decoder.decoder_norm"),
    *linear("output", "decoder.decoder_pred"),
)

FAMILIES = {
    "vit_mae": Family(
        model_type="vit_mae",
        architectures={
            "ViTMAEModel": Architecture(
                read, autoencoder_model, base=True, ignored=(r"^decoder\.",),
                uses=("feature-extraction",), inputs=ENCODER, **LAYERS
            ),
            "ViTMAEForPreTraining": Architecture(
                _whole, autoencoder, HEAD, lambda config: DECODER.write(config.decoder), at="encoder.",
                uses=("fill-mask",), inputs=ENCODER, marks=LAYERS["marks"], layers=encoder_layers,
            ),
        },
        table=(*vit.EMBEDDINGS, *vit.blocks("trunk.blocks", "encoder.layer"), *norm("trunk.norm", "layernorm")),
        write=CONFIG.write,
        prefix="vit.",
        kin="vit",
        renamed={r"\.decoder_encoder\.layer\.": ".decoder_layers.", **vit.RENAMED},
        modules=vit.MODULES,
    )
}  # fmt: skip
