"""What BART's, Marian's, Whisper's and their kin's checkpoints have in common: the two sides."""

from flax_transformer.hub.table import Table, linear, norm, parameter

ROWS = {
    "vocab_size": "vocab",
    "d_model": "embed",
    "encoder_layers": "encoder.depth",
    "decoder_layers": "decoder.depth",
    "encoder_attention_heads": "encoder.heads",
    "decoder_attention_heads": "decoder.heads",
    "encoder_ffn_dim": "encoder.inner",
    "decoder_ffn_dim": "decoder.inner",
    "max_position_embeddings": "max_length",
    "scale_embedding": "scaled",
    "activation_function": "activation",
    "dropout": ("encoder.dropout", "dropout"),
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "init_std": "init_std",
    "output_bias": "output_bias",
}
ONLY = {
    "tie_word_embeddings": True, "normalize_before": False, "add_final_layer_norm": False, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}  # fmt: skip
PRE_NORM = {**ONLY, "normalize_before": True, "add_final_layer_norm": True}
"""Of families whose sides end in a norm."""
ADDS = {"is_encoder_decoder": True, "tie_word_embeddings": True}
SIZES = {
    "embed": 1024, "heads": 16, "inner": 4096, "depth": 12, "max_length": 1024, "activation": "gelu", "scaled": False,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "output_bias": True,
}  # fmt: skip
"""What either's config.json need not say."""


SELF, BOTH = {"attention": "self_attn"}, {"attention": "self_attn", "cross": "encoder_attn"}
"""Attention of an encoder's blocks and of a decoder's: our names and theirs."""


def side(ours: str, theirs: str, attentions: dict[str, str]) -> Table:
    """Return the rows of one side's blocks."""
    return stack(f"{ours}.blocks", f"{theirs}.layers.{{}}", attentions)


def stack(ours: str, theirs: str, attentions: dict[str, str]) -> Table:
    """Return the rows of a stack of blocks: attentions, a feed-forward layer, and the norm of each."""
    rows = []
    for mine, yours in attentions.items():
        for part in ("query", "key", "value"):
            rows += linear(f"{ours}.{mine}.{part}", f"{theirs}.{yours}.{part[0]}_proj")
        rows += linear(f"{ours}.{mine}.out", f"{theirs}.{yours}.out_proj", inputs=2)
        rows += norm(f"{ours}.{mine}_residual.norm", f"{theirs}.{yours}_layer_norm")
    return (
        *rows,
        *linear(f"{ours}.feedforward.up", f"{theirs}.fc1"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.fc2"),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.final_layer_norm"),
    )


SIDES = (*side("encoder", "encoder", SELF), *side("decoder", "decoder", BOTH))
END_NORMS = (*norm("encoder.norm", "encoder.layer_norm"), *norm("decoder.norm", "decoder.layer_norm"))
"""Of sides of pre-norm blocks."""
BIAS = parameter("output_bias", "final_logits_bias", ones=1)
"""Theirs is a row, [1, V]."""


def copies(prefix: str) -> dict[str, str]:
    """Return the tensors that are the token table again, where a backbone's have a prefix."""
    names = (f"{before}{side}.embed_tokens.weight" for before in ("", prefix) for side in ("encoder", "decoder"))
    return dict.fromkeys(("lm_head.weight", *names), "shared.weight")


COPIES = copies("model.")
