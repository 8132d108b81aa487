"""Adapters held by name: with each of them, and with another in every row, what `peft` computes."""

import numpy as np
import pytest

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("checkpoints", "several adapters held by name, one for each row, equal to peft"),
]

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64} | {"eos_token_id": 2}
BERT = {"num_labels": 3, "initializer_range": 0.2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
PICTURE = {"image_size": 16, "patch_size": 8, "num_labels": 3}
VIT = {name: value for name, value in SMALL.items() if name != "vocab_size"} | PICTURE
BASES = {
    "bert": (transformers.BertForSequenceClassification, transformers.BertConfig(**SMALL, **BERT)),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2)),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL, num_key_value_heads=2)),
    "t5": (transformers.T5ForConditionalGeneration, transformers.T5Config(**T5, decoder_start_token_id=0)),
    "vit": (transformers.ViTForImageClassification, transformers.ViTConfig(**VIT)),
}
ADAPTERS = {
    "bert": {"one": ["query", "value"], "two": ["key", "output.dense"]},
    "gpt2": {"one": ["c_attn", "c_proj"], "two": ["c_fc"]},
    "llama": {"one": ["q_proj", "o_proj", "down_proj"], "two": ["q_proj", "v_proj", "up_proj"]},
    "t5": {"one": ["q", "v"], "two": ["o", "wi", "wo"]},
    "vit": {"one": ["q_proj", "fc1"], "two": ["o_proj", "fc2"]},
}
SIZES = {"one": {"r": 3, "lora_alpha": 8}, "two": {"r": 5, "lora_alpha": 6, "use_rslora": True}}
ROWS = ["one", None, "two", "two"]


@pytest.fixture(scope="module", params=BASES)
def family(request, tmp_path_factory):
    name = request.param
    folder, (kind, config) = tmp_path_factory.mktemp(name), BASES[name]
    torch.manual_seed(0)
    kind(config).eval().save_pretrained(folder / "base")
    for adapter, modules in ADAPTERS[name].items():
        base = kind.from_pretrained(folder / "base")
        wrapped = peft.get_peft_model(base, peft.LoraConfig(target_modules=modules, **SIZES[adapter]))
        with torch.no_grad():
            for value in (value for value in wrapped.parameters() if value.requires_grad):
                value.add_(0.1 * torch.randn_like(value))
        wrapped.save_pretrained(folder / adapter)
    theirs = peft.PeftModel.from_pretrained(kind.from_pretrained(folder / "base"), folder / "one", adapter_name="one")
    theirs.load_adapter(folder / "two", "two")
    held = hub.load(folder / "base", adapters={adapter: folder / adapter for adapter in ADAPTERS[name]})
    return name, folder, theirs.eval(), held


def inputs_of(name):
    random = np.random.default_rng(0)
    if name == "vit":
        return {"pixel_values": random.normal(size=(4, 3, 16, 16)).astype(np.float32)}
    ids = {"input_ids": random.integers(3, 99, (4, 7))}
    return ids | ({"decoder_input_ids": random.integers(3, 99, (4, 5))} if name == "t5" else {})


def run(model, given, **options):
    with torch.no_grad():
        return model(**{key: torch.as_tensor(value) for key, value in given.items()}, **options).logits.numpy()


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_each_adapter_alone(family):
    name, folder, theirs, held = family
    given = inputs_of(name)
    for adapter in ("one", "two"):
        theirs.set_adapter(adapter)
        expected = run(theirs, given)
        close(held.choose(adapter)(**given).logits, expected)
        close(held.merged(adapter)(**given).logits, expected)
        close(hub.load(folder / "base", adapters=[folder / adapter])(**given).logits, expected)
        assert np.abs(expected - held(**given).logits).max() > 1e-3


def test_another_adapter_in_each_row(family):
    name, _, theirs, held = family
    given = inputs_of(name)
    expected = run(theirs, given, adapter_names=["__base__" if each is None else each for each in ROWS])
    close(held.choose(ROWS)(**given).logits, expected)


def test_without_an_adapter_it_is_the_base(family):
    name, folder, _, held = family
    given, plain = inputs_of(name), hub.load(folder / "base")
    expected = plain(**given).logits
    np.testing.assert_array_equal(held(**given).logits, expected)
    np.testing.assert_array_equal(held.choose("one").choose(None)(**given).logits, expected)
    np.testing.assert_array_equal(held.choose([None] * 4)(**given).logits, expected)
    np.testing.assert_array_equal(held.merged()(**given).logits, expected)


@pytest.mark.rotates
def test_generated_tokens_are_those_of_each_row_s_adapter(family):
    name, _, theirs, held = family
    if name not in ("gpt2", "llama", "t5"):
        pytest.skip("generates nothing")
    ids = inputs_of(name)["input_ids"]
    options = {"max_new_tokens": 6, "min_new_tokens": 6}
    found = held.choose(ROWS).generate(ids, **options)
    beams = held.choose(ROWS).generate(ids, num_beams=3, num_return_sequences=2, **options)
    for row, adapter in enumerate(ROWS):
        one = held.choose(adapter).generate(ids[row : row + 1], **options)
        np.testing.assert_array_equal(found[row : row + 1], one)
        several = held.choose(adapter).generate(ids[row : row + 1], num_beams=3, num_return_sequences=2, **options)
        np.testing.assert_array_equal(beams[2 * row : 2 * row + 2], several)
        if adapter is not None:
            theirs.set_adapter(adapter)
            expected = theirs.generate(input_ids=torch.as_tensor(ids[row : row + 1]), do_sample=False, **options)
            np.testing.assert_array_equal(one, expected.numpy())
