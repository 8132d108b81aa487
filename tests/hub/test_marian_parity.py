"""Marian against transformers: both classes, odd sizes, padding on either side, and the round trip."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.family.marian import read
from flax_transformer.hub.fields import Fields
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_tiny
from tests.hub.oracle import close, compare, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("marian", "parity", "logits and layers")]

V = 61
CONFIGS = {
    "plain": {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "heads": 4, "scale_embedding": True},
    "odd": {"d_model": 14, "encoder_layers": 1, "decoder_layers": 1, "heads": 7, "activation_function": "swish"},
    "relu": {"d_model": 10, "encoder_layers": 3, "decoder_layers": 1, "heads": 1, "activation_function": "relu"},
}


def make(kind, *, heads=2, **options):
    torch.manual_seed(1)
    config = transformers.MarianConfig(
        max_position_embeddings=20, init_std=0.3, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=17, decoder_ffn_dim=22, pad_token_id=V - 1, eos_token_id=0, decoder_start_token_id=V - 1,
        **{"vocab_size": V, **options},
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_language_model_equals_transformers(tmp_path, options, side):
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    if side is not None:
        inputs |= {"attention_mask": padded([9, 4, 1], 9, side), "decoder_attention_mask": padded([6, 1, 3], 6, side)}
    compare(make("MarianMTModel", **options), tmp_path, **inputs)


def test_the_base_class_equals_transformers_without_its_tables_of_sinusoids(tmp_path):
    """There they are saved, and computed anew where they are missing."""
    inputs = {"input_ids": random_ids(V, 2, 9), "decoder_input_ids": random_ids(V, 2, 20)}
    model = make("MarianModel", **CONFIGS["plain"]).eval()
    model.save_pretrained(tmp_path / "theirs")
    ours, expected = hub.load(tmp_path / "theirs"), forward(model, inputs)
    got = ours(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, got[name], inputs)
    hub.save(ours, tmp_path / "back")
    again = forward(transformers.MarianModel.from_pretrained(tmp_path / "back").eval(), inputs)
    np.testing.assert_array_equal(again["last_hidden_state"], expected["last_hidden_state"])


@pytest.mark.parametrize("kind", ["MarianMTModel", "MarianModel"])
@pytest.mark.parametrize("sizes", [(V + 9, V), (V, V + 9)])
def test_two_vocabularies_equal_transformers(tmp_path, sizes, kind):
    """Each side has a table of its own, and logits are made by the decoder's; ids are those of their side."""
    own = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": sizes[1], "vocab_size": sizes[0]}
    mask = padded([9, 4, 1], 9)
    inputs = {
        "input_ids": random_ids(sizes[0], 3, 9), "attention_mask": mask,
        "decoder_input_ids": random_ids(sizes[1], 3, 6, seed=1),
    }  # fmt: skip
    inputs["input_ids"][0, 0], inputs["decoder_input_ids"][0, 0] = (size - 1 for size in sizes)
    model = make(kind, **CONFIGS["plain"], **own)
    ours, _ = compare(model, tmp_path, **inputs)
    for name, size, other in (("input_ids", *sizes), ("decoder_input_ids", *sizes[::-1])):
        if size < other:
            with pytest.raises(ValueError, match=rf"token ids must be in \[0, {size}\), {name} has {other - 1}"):
                ours(**{**inputs, name: np.full_like(inputs[name], other - 1)})


def test_a_checkpoint_of_two_vocabularies_with_its_tied_copy_loads(tmp_path):
    from safetensors.numpy import load_file, save_file

    own = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V + 9}
    make("MarianMTModel", **CONFIGS["plain"], **own).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    plain, tensors = hub.load(tmp_path).model, load_file(file)
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].copy()
    save_file(tensors, file)
    assert (hub.load(tmp_path).model.embedding.token.embedding[...] == plain.embedding.token.embedding[...]).all()
    tensors["lm_head.weight"] += 1
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"lm_head.weight must equal model.decoder.embed_tokens.weight"):
        hub.load(tmp_path)


@pytest.mark.parametrize(
    ("option", "value"),
    [("decoder_vocab_size", 7), ("normalize_embedding", True)],
)
def test_what_is_not_supported_is_refused_by_name(option, value):
    with pytest.raises(ValueError, match=option):
        read(Fields.of({option: value}))


def test_a_model_with_its_sinusoids_in_another_order_is_put_in_marians(tmp_path):
    """It computes the same, here and in transformers."""
    model = Seq2Seq(transformer_tiny(V, dropout=0.0), rngs=nnx.Rngs(0))
    wrapped = hub.wrap(model, "MarianMTModel", decoder_start_token_id=V - 1, pad_token_id=V - 1, eos_token_id=0)
    assert wrapped.model.cfg.embedding.position == "sinusoidal_halves"
    hub.save(wrapped, tmp_path)
    source, target = random_ids(V, 2, 7), random_ids(V, 2, 5, seed=1)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = theirs(torch.as_tensor(source), decoder_input_ids=torch.as_tensor(target)).logits.numpy()
    assert theirs.model.encoder.embed_positions.weight.shape[1] == model.cfg.embedding.embed
    ours = wrapped(input_ids=source, decoder_input_ids=target).logits
    for logits in (ours, model(jnp.asarray(source), jnp.asarray(target))):
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
