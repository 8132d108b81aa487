"""Encoders of images with decoders of words against transformers: odd sizes, projections, generation, round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


from tests.hub.oracle import compare  # noqa: E402
from tests.hub.pictures import images, strengthen  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("vision_encoder_decoder", "parity", "ViT, DeiT, Swin, DINOv2 with GPT-2, BERT, RoBERTa, TrOCR"),
]

VIT = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20, "patch_size": 4}
ENCODERS = {
    "ViT": (transformers.ViTConfig(**VIT, image_size=12), 12),
    "DeiT": (transformers.DeiTConfig(**VIT, image_size=13, num_channels=1), 13),
    "Swin": (
        transformers.SwinConfig(
            image_size=18, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=3
        ),
        18,
    ),
    "Dinov2": (transformers.Dinov2Config(**VIT, image_size=8, mlp_ratio=3), 8),
}
GPT2, TROCR = transformers.GPT2Config, transformers.TrOCRConfig
BERT = {"num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 11, "max_position_embeddings": 20}
BART = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 9, "max_position_embeddings": 20}
DECODERS = {
    "as wide": (GPT2, {"n_positions": 15, "n_embd": 12, "n_layer": 2, "n_head": 3}),
    "narrower": (
        GPT2,
        {"n_positions": 15, "n_embd": 10, "n_layer": 1, "n_head": 5, "n_inner": 7, "activation_function": "relu"},
    ),
    "unscaled": (
        GPT2,
        {
            "n_positions": 15, "n_embd": 12, "n_layer": 3, "n_head": 1, "scale_attn_weights": False,
            "layer_norm_epsilon": 1e-3,
        },
    ),
    "BERT": (transformers.BertConfig, {**BERT, "hidden_size": 12}),
    "BERT, narrower": (transformers.BertConfig, {**BERT, "hidden_size": 9, "hidden_act": "relu", "type_vocab_size": 3}),
    "RoBERTa": (transformers.RobertaConfig, {**BERT, "hidden_size": 15, "pad_token_id": 0}),
    "CamemBERT": (transformers.CamembertConfig, {**BERT, "hidden_size": 12, "pad_token_id": 0}),
    "TrOCR": (TROCR, {**BART, "d_model": 10, "cross_attention_hidden_size": 12}),
    "TrOCR, projected": (TROCR, {**BART, "d_model": 14, "scale_embedding": True, "activation_function": "relu"}),
    "TrOCR, large": (
        TROCR,
        {
            **BART, "d_model": 12, "use_learned_position_embeddings": False, "layernorm_embedding": False,
            "scale_embedding": True, "activation_function": "relu", "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip
END, VOCAB = 2, 40
PAIRS = [
    ("ViT", "as wide"), ("DeiT", "narrower"), ("Swin", "unscaled"), ("Dinov2", "narrower"), ("ViT", "unscaled"),
    ("ViT", "BERT"), ("Swin", "BERT, narrower"), ("DeiT", "RoBERTa"), ("Dinov2", "CamemBERT"), ("ViT", "TrOCR"),
    ("DeiT", "TrOCR, projected"), ("ViT", "TrOCR, large"),
]  # fmt: skip


def made(encoder, decoder):
    torch.manual_seed(0)
    kind, sizes = DECODERS[decoder]
    words = kind(**{
        "vocab_size": VOCAB, "add_cross_attention": True, "is_decoder": True, "bos_token_id": 1, "eos_token_id": END,
        "pad_token_id": 0, **sizes,
    })  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        ENCODERS[encoder][0], words, decoder_start_token_id=1, pad_token_id=0, eos_token_id=END
    )
    return strengthen(transformers.VisionEncoderDecoderModel(config)).eval()


def pictures(encoder, count=3):
    config, size = ENCODERS[encoder]
    return {"pixel_values": images(size, size, config.num_channels)[:count]}


@pytest.fixture(autouse=True)
def sinusoids_after_loading(monkeypatch):
    """Let transformers 5 make TrOCR's sinusoids again, which it leaves without values when it loads a model."""
    from transformers.models.trocr.modeling_trocr import TrOCRSinusoidalPositionalEmbedding as Sinusoids

    forward = Sinusoids.forward

    def made_again(self, *args, **named):
        self.weights = None if self.weights is None or self.weights.is_meta else self.weights
        return forward(self, *args, **named)

    monkeypatch.setattr(Sinusoids, "forward", made_again)


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_both_sides_equal_transformers(tmp_path, encoder, decoder):
    given = pictures(encoder)
    count = len(given["pixel_values"])
    ids = np.random.default_rng(0).integers(3, VOCAB, (count, 6))
    compare(made(encoder, decoder), tmp_path, **given, decoder_input_ids=ids)


@pytest.mark.rotates
@pytest.mark.parametrize(
    "settings",
    [{}, {"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}, {"min_new_tokens": 5}],
)
@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [("ViT", "narrower"), ("Swin", "narrower"), ("ViT", "BERT"), ("DeiT", "RoBERTa"), ("ViT", "TrOCR, large")],
)
def test_captions_are_written_token_for_token(tmp_path, encoder, decoder, settings):
    from flax_transformer import hub

    model = made(encoder, decoder)
    model.save_pretrained(tmp_path)
    given = pictures(encoder)
    with torch.no_grad():
        expected = model.generate(
            torch.as_tensor(given["pixel_values"]), max_length=12, do_sample=False, suppress_tokens=[0], **settings
        )
    got = hub.load(tmp_path).generate(**given, max_length=12, do_sample=False, suppress_tokens=[0], **settings)
    np.testing.assert_array_equal(np.asarray(got), expected.numpy())
