"""T5 against transformers: every class, odd sizes, padding on either side, far positions, and the round trip."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.family.t5 import read
from flax_transformer.hub.fields import Fields
from flax_transformer.nn import with_precision
from tests.hub.oracle import close, compare, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("t5", "parity", "every class and layer")]

V, EOS = 61, 1
CONFIGS = {
    "plain": {"d_model": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "d_kv": 6, "d_ff": 40},
    "odd": {"d_model": 15, "num_layers": 1, "num_heads": 3, "d_kv": 7, "d_ff": 22, "feed_forward_proj": "gelu"},
    "eps": {
        "d_model": 10, "num_layers": 2, "num_heads": 1, "d_kv": 4, "d_ff": 9, "layer_norm_epsilon": 0.1,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6,
    },
    "gated": {"d_model": 14, "num_layers": 2, "num_heads": 2, "d_kv": 5, "d_ff": 11, "feed_forward_proj": "gated-gelu"},
    "gated_silu": {"d_model": 8, "num_layers": 1, "num_heads": 2, "d_kv": 3, "feed_forward_proj": "gated-silu"},
}  # fmt: skip


def make(kind, **options):
    torch.manual_seed(1)
    sizes = {"vocab_size": V, "decoder_start_token_id": 0, **options}
    config = (transformers.MT5Config if kind.startswith("MT5") else transformers.T5Config)(**sizes)
    model = getattr(transformers, kind)(config).eval()
    for name, value in model.named_parameters():
        if "layer_norm" in name or "relative" in name:
            torch.nn.init.normal_(value, 1.0, 0.5)
    return model


def ended(rows, length):
    """Return token ids of which each row has one end token, at another place."""
    ids = random_ids(V, rows, length)
    ids[range(rows), [length - 1 - i for i in range(rows)]] = EOS
    return ids


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_language_model_equals_transformers(tmp_path, options, side):
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    if side is not None:
        inputs |= {"attention_mask": padded([9, 4, 1], 9, side), "decoder_attention_mask": padded([6, 1, 3], 6, side)}
    compare(make("T5ForConditionalGeneration", **options), tmp_path, **inputs)


def untied(folder, **options):
    """Make a model with an output layer of its own, which transformers makes of checkpoints only."""
    from safetensors.torch import load_file, save_file

    make("T5ForConditionalGeneration", **options, tie_word_embeddings=False).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(tensors["shared.weight"].shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return transformers.T5ForConditionalGeneration.from_pretrained(folder)


@pytest.mark.parametrize("name", ["plain", "gated"])
def test_an_output_layer_of_its_own_equals_transformers(tmp_path, name):
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    ours, _ = compare(untied(tmp_path, **CONFIGS[name]), tmp_path, **inputs)
    assert not ours.model.cfg.tied_output
    assert ours.model.cfg.output_scale == 1


def test_far_positions_share_buckets_as_in_transformers(tmp_path):
    model = make("T5ForConditionalGeneration", **CONFIGS["odd"])
    compare(model, tmp_path, input_ids=random_ids(V, 1, 300), decoder_input_ids=random_ids(V, 1, 290))


@pytest.mark.parametrize("kind", ["T5Model", "T5EncoderModel", "T5ForTokenClassification"])
def test_every_model_equals_transformers(tmp_path, kind):
    inputs = {"input_ids": random_ids(V, 3, 9), "attention_mask": padded([9, 4, 1], 9, "left")}
    if kind == "T5Model":
        inputs["decoder_input_ids"] = random_ids(V, 3, 6)
    compare(make(kind, **CONFIGS["plain"], num_labels=5), tmp_path, **inputs)


@pytest.mark.parametrize(("kind", "labels"), [("T5ForSequenceClassification", 5), ("T5ForQuestionAnswering", 2)])
def test_classifiers_read_the_source_again(tmp_path, kind, labels):
    model = make(kind, **CONFIGS["plain"], num_labels=labels)
    compare(model, tmp_path, input_ids=ended(3, 9), attention_mask=padded([9, 8, 7], 9))


def test_a_checkpoint_with_copies_and_an_unused_bias_loads_as_each_smaller_class(tmp_path):
    from safetensors.torch import load_file, save_file

    make("T5ForConditionalGeneration", **CONFIGS["plain"]).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name in ("lm_head", "encoder.embed_tokens", "decoder.embed_tokens"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(32, 4)
    save_file(tensors, file)
    ids = random_ids(V, 2, 5)
    expected = hub.load(tmp_path)(input_ids=ids, decoder_input_ids=ids)
    for name in ("T5Model", "T5EncoderModel"):
        got = hub.load(tmp_path, lenient=hub.Lenient(architecture=name))
        got = got(input_ids=ids, **({"decoder_input_ids": ids} if name == "T5Model" else {}))
        memory = got.last_hidden_state if name == "T5EncoderModel" else got.encoder_last_hidden_state
        np.testing.assert_array_equal(memory, expected.encoder_last_hidden_state)


def test_in_float16_what_feed_forward_layers_write_may_be_beyond_it(tmp_path):
    """As T5 1.1 as published does; transformers keeps `wo` and the residual stream in float32."""
    model = make("T5ForConditionalGeneration", **CONFIGS["gated"])
    for name, value in model.named_parameters():
        value.data *= {"wi_0": 30, "wi_1": 30, "wo": 1000}.get(name.split(".")[-2], 1)
    model.save_pretrained(tmp_path)
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    half = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16)
    expected, ours = forward(half, inputs), hub.load(tmp_path, dtype="float16")
    assert np.abs(expected["encoder_hidden_states"][1]).max() > np.finfo(np.float16).max
    got = ours(**inputs)
    exact = hub.load(tmp_path)(**inputs).logits
    for theirs, name in ((expected["logits"].astype(np.float32), "transformers' float16"), (exact, "float32")):
        error = np.abs(got.logits - theirs).max() / np.abs(theirs).max()
        assert error < 5e-3, f"{name}: {error}"
    narrow = with_precision(ours.model.cfg, compute="float16", wide_residual=False)
    model = type(ours.model)(narrow, rngs=nnx.Rngs(0))
    nnx.update(model, nnx.state(ours.model))
    assert not np.isfinite(model(*(jnp.asarray(ids) for ids in inputs.values()))).all()


@pytest.mark.parametrize("value", ["gated-mish", "gelu-gated", "mish", "gated"])
def test_what_is_not_supported_is_refused_by_name(value):
    with pytest.raises(ValueError, match=f"feed_forward_proj='{value}'; supported are .*relu"):
        read(Fields.of({"feed_forward_proj": value}))


def blind(length, *, at=2):
    """Return a mask for three rows, of which one has no token."""
    return padded([length, length // 2, 0], length, "right") if at == 2 else padded([0, length, 1], length, "left")


@pytest.mark.parametrize("kind", ["T5ForConditionalGeneration", "T5EncoderModel", "MT5ForConditionalGeneration"])
@pytest.mark.parametrize("at", [0, 2])
def test_rows_that_are_all_padding_are_what_transformers_makes_of_them(tmp_path, kind, at):
    """All positions are compared, of padding too, on both sides, as its default attention computes them."""
    make(kind, **CONFIGS["plain"]).save_pretrained(tmp_path)
    theirs, ours = getattr(transformers, kind).from_pretrained(tmp_path).eval(), hub.load(tmp_path)
    inputs = {"input_ids": random_ids(V, 3, 9), "attention_mask": blind(9, at=at)}
    if "Encoder" not in kind:
        inputs |= {"decoder_input_ids": random_ids(V, 3, 6, seed=1), "decoder_attention_mask": blind(6, at=at)}
    expected, got = forward(theirs, inputs), ours(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, got[name], {})


def scaled(model, yes):
    model.config.scale_decoder_outputs = yes
    return model


@pytest.mark.parametrize("name", ["plain", "gated"])
def test_a_tied_output_layer_without_scaling_equals_transformers(tmp_path, name):
    """Transformers 5 makes and saves such: T5 1.1 without `lm_head.weight`."""
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    model = scaled(make("T5ForConditionalGeneration", **CONFIGS[name]), False)
    ours, _ = compare(model, tmp_path, **inputs)
    assert ours.model.cfg.tied_output
    assert ours.model.cfg.output_scale == 1
    again = hub.wrap(ours.model, "T5ForConditionalGeneration")
    np.testing.assert_array_equal(again(**inputs).logits, ours(**inputs).logits)


@pytest.mark.parametrize(("said", "own"), [(False, True), (False, False), (True, True), (True, False)])
def test_whether_mt5_has_an_output_layer_of_its_own_is_told_by_its_tensors(tmp_path, said, own):
    """Published ones have one and say that nothing is tied; transformers 5 ties them, and says so of all."""
    from safetensors.torch import load_file, save_file

    make("MT5ForConditionalGeneration", **CONFIGS["gated"]).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    if own:
        tensors["lm_head.weight"] = torch.randn(tensors["shared.weight"].shape)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": said}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = transformers.MT5ForConditionalGeneration.from_pretrained(tmp_path)
    inputs = {"input_ids": random_ids(V, 3, 9), "decoder_input_ids": random_ids(V, 3, 6, seed=1)}
    ours, _ = compare(model, tmp_path / "out", **inputs)
    assert ours.model.cfg.tied_output != own
    assert ours.config["model_type"] == "mt5"


@pytest.mark.parametrize("kind", ["Model", "EncoderModel", "ForTokenClassification", "ForSequenceClassification"])
def test_every_mt5_equals_transformers(tmp_path, kind):
    inputs = {"input_ids": random_ids(V, 3, 9), "attention_mask": padded([9, 4, 1], 9, "left")}
    if kind == "Model":
        inputs["decoder_input_ids"] = random_ids(V, 3, 6)
    if kind == "ForSequenceClassification":
        inputs = {"input_ids": ended(3, 9)}
    compare(make(f"MT5{kind}", **CONFIGS["gated"], num_labels=5), tmp_path, **inputs)


def test_missing_fields_of_mt5_are_those_of_transformers():
    named = {"model_type": "mt5"}
    assert read(Fields.of(named)) == read(Fields.of(transformers.MT5Config().to_dict()))
