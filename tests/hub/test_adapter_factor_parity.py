"""Low-rank factors as folders of PEFT: `peft` opens what is written here, and computes what the merged model does."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from flax_transformer.hub.adapter_target import modules_of, targets_of  # noqa: E402
from flax_transformer.hub.quantized.model import plain  # noqa: E402
from flax_transformer.hub.weights import renamer, resolve  # noqa: E402
from flax_transformer.train import LoraConfig, init_lora, merge_lora  # noqa: E402
from flax_transformer.train.lora import LowRank  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
PICTURE = {"image_size": 16, "patch_size": 8, "num_labels": 3}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
SWIN = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 4}
MIXTRAL = {"num_local_experts": 4, "num_key_value_heads": 2}
KERNELS = r"(?<!router\.)(?<!experts\.\w\w)(?<!experts\.\w{4})\.kernel$"


def classes(name, **options):
    config = getattr(transformers, f"{name}Config")(**options)
    return config


BASES = {
    "bert": (transformers.BertForSequenceClassification, classes("Bert", **SMALL, num_labels=3)),
    "gpt2": (transformers.GPT2LMHeadModel, classes("GPT2", **GPT2)),
    "neox": (transformers.GPTNeoXForCausalLM, classes("GPTNeoX", **SMALL)),
    "falcon": (transformers.FalconForCausalLM, classes("Falcon", **SMALL)),
    "llama": (
        transformers.LlamaForCausalLM,
        classes("Llama", **SMALL, num_key_value_heads=2, tie_word_embeddings=False),
    ),
    "phi3": (transformers.Phi3ForCausalLM, classes("Phi3", **SMALL, num_key_value_heads=2, pad_token_id=0)),
    "mixtral": (transformers.MixtralForCausalLM, classes("Mixtral", **SMALL, **MIXTRAL)),
    "t5": (transformers.T5ForConditionalGeneration, classes("T5", **T5, decoder_start_token_id=0)),
    "vit": (
        transformers.ViTForImageClassification,
        classes("ViT", **{k: v for k, v in SMALL.items() if k != "vocab_size"}, **PICTURE),
    ),
    "swin": (transformers.SwinForImageClassification, classes("Swin", **SWIN, num_labels=3)),
}
CASES = {
    "queries and values": ("bert", r"(query|value)\.kernel$"),
    "queries and values in one tensor, inputs first": ("gpt2", r"(query|value)\.kernel$"),
    "all in one tensor, and a square one": ("gpt2", r"\.kernel$"),
    "groups of heads in one tensor": ("neox", r"\.kernel$"),
    "all heads of one group in one tensor": ("falcon", r"\.kernel$"),
    "queries of a tensor of groups": ("neox", r"query\.kernel$"),
    "gate and up in one tensor": ("phi3", r"\.kernel$"),
    "rotary": ("llama", r"\.kernel$"),
    "tables of tokens and logits": ("llama", r"(token\.embedding|query\.kernel)$"),
    "attention beside experts": ("mixtral", r"(query|key|value|out)\.kernel$"),
    "both sides": ("t5", r"\.kernel$"),
    "patches of images": ("vit", r"\.kernel$"),
    "stages": ("swin", r"\.kernel$"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    torch.manual_seed(0)
    for name, (kind, config) in BASES.items():
        kind(config).eval().save_pretrained(folder / name)
    return folder


def trained(model, pattern, rank=3, seed=0, **options):
    lora = init_lora(model, LoraConfig(rank=rank, pattern=pattern, **options), jax.random.key(seed))
    random = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(0.1 * random.normal(size=leaf.shape), jnp.float32)  # noqa: E731
    return {name: LowRank(pair.a, draw(pair.b), pair.scale) for name, pair in lora.items()}


def inputs_of(name):
    random = np.random.default_rng(0)
    if name in ("vit", "swin"):
        size = 16 if name == "vit" else 32
        return {"pixel_values": random.normal(size=(2, 3, size, size)).astype(np.float32)}
    ids = {"input_ids": random.integers(3, 99, (2, 7))}
    return ids | ({"decoder_input_ids": random.integers(3, 99, (2, 5))} if name == "t5" else {})


def theirs(name, base, adapter, given):
    model = peft.PeftModel.from_pretrained(BASES[name][0].from_pretrained(base), adapter).eval()
    with torch.no_grad():
        return model, model(**{key: torch.as_tensor(value) for key, value in given.items()}).logits.numpy()


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.rotates
@pytest.mark.proves("checkpoints", "trained LoRA as PEFT's folders, which peft opens")
@pytest.mark.parametrize("case", CASES)
def test_peft_computes_what_the_merged_model_does(case, folders, tmp_path):
    name, pattern = CASES[case]
    given, plain = inputs_of(name), hub.load(folders / name)
    lora = trained(plain.model, pattern)
    hub.save_adapter(lora, plain, tmp_path / "adapter", base=folders / name)
    found = hub.load_adapter(tmp_path / "adapter", plain)
    assert_same(found, lora)
    merged = hub.load(folders / name, adapters=[tmp_path / "adapter"])
    wrapped, expected = theirs(name, folders / name, tmp_path / "adapter", given)
    np.testing.assert_allclose(merged(**given).logits, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(plain(**given).logits - expected).max() > 1e-3
    ours = jax.tree.leaves(jax.jit(merge_lora)(plain.model, lora))
    for one, other in zip(ours, jax.tree.leaves(merged.model), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    wrapped.save_pretrained(tmp_path / "again", save_embedding_layers=False)
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert stored.keys() == again.keys()
    for key, value in stored.items():
        np.testing.assert_array_equal(value, again[key])


def test_ranks_and_scales_that_differ_are_patterns(folders, tmp_path):
    plain = hub.load(folders / "llama")
    lora = trained(plain.model, r"(query|value)\.kernel$") | trained(plain.model, r"up\.kernel$", 5, 1, alpha=7.0)
    hub.save_adapter(lora, plain, tmp_path, base=folders / "llama")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 16)
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({"up_proj": 5}, {"up_proj": 7})
    assert sorted(config["target_modules"]) == ["q_proj", "up_proj", "v_proj"]
    assert_same(hub.load_adapter(tmp_path, plain), lora)
    given = inputs_of("llama")
    expected = theirs("llama", folders / "llama", tmp_path, given)[1]
    np.testing.assert_allclose(hub.load(tmp_path)(**given).logits, expected, rtol=1e-5, atol=1e-5)


def test_a_new_head_is_written_whole(folders, tmp_path):
    start = hub.Lenient(config={"num_labels": 5}, initialise=("^classifier",))
    plain = hub.load(folders / "bert", lenient=start)
    lora = trained(plain.model, r"(query|value|head\.output)\.kernel$")
    head = "classifier.weight", "classifier.bias"
    hub.save_adapter(lora, plain, tmp_path, base=folders / "bert", whole=head)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", ["classifier"])
    given, merged = inputs_of("bert"), jax.jit(merge_lora)(plain.model, lora)
    base = transformers.BertForSequenceClassification.from_pretrained(
        folders / "bert", num_labels=5, ignore_mismatched_sizes=True
    )
    wrapped = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    with torch.no_grad():
        expected = wrapped(input_ids=torch.as_tensor(given["input_ids"])).logits.numpy()
    found = hub.load(tmp_path)
    np.testing.assert_allclose(found(**given).logits, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.model.head.output.kernel[...], merged.head.output.kernel[...])
    with pytest.raises(ValueError, match=r"has more than low-rank factors, classifier\.bias, classifier\.weight"):
        hub.load_adapter(tmp_path, plain)


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox", "vit"])
def test_factors_that_peft_trained_are_those_of_our_kernels(name, folders, tmp_path):
    base = BASES[name][0].from_pretrained(folders / name)
    wrapped = peft.get_peft_model(base, peft.LoraConfig(target_modules="all-linear", r=3, lora_alpha=5)).eval()
    with torch.no_grad():
        for value in (value for value in wrapped.parameters() if value.requires_grad):
            value.add_(0.05 * torch.randn_like(value))
    wrapped.save_pretrained(tmp_path)
    given, plain = inputs_of(name), hub.load(folders / name)
    lora = hub.load_adapter(tmp_path, plain)
    _, expected = theirs(name, folders / name, tmp_path, given)
    model = hub.Pretrained(jax.jit(merge_lora)(plain.model, lora), plain.config)
    np.testing.assert_allclose(model(**given).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "names", [("q_proj", "v_proj"), ("all-linear",), ("query", "output.dense"), ("c_attn", "mlp.c_proj")]
)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "swin", "t5"])
def test_target_modules_are_those_of_peft(name, names, folders, tmp_path):
    base = BASES[name][0].from_pretrained(folders / name)
    task = {"task_type": "SEQ_CLS"} if name == "bert" else {}
    asked = "all-linear" if names == ("all-linear",) else list(names)
    try:
        wrapped = peft.get_peft_model(base, peft.LoraConfig(target_modules=asked, **task))
    except ValueError:
        with pytest.raises(ValueError, match="target_modules must name modules"):
            hub.find_targets(LoraConfig(target_modules=names), hub.load(folders / name))
        return
    theirs = {key for key in peft.get_peft_model_state_dict(wrapped) if "lora" in key}
    plain = hub.load(folders / name)
    lora = init_lora(plain.model, hub.find_targets(LoraConfig(target_modules=names), plain), jax.random.key(0))
    hub.save_adapter(lora, plain, tmp_path)
    assert set(load_file(tmp_path / "adapter_model.safetensors")) == theirs


GOLDEN = sorted((Path(__file__).parent / "golden").iterdir())


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_modules_have_the_names_of_transformers(folder):
    loaded = hub.load(folder)
    kind = getattr(transformers, loaded.config["architectures"][0], None)
    if kind is None:
        pytest.skip("a class of no version of transformers")
    with torch.device("meta"):
        modules = dict(kind(kind.config_class.from_pretrained(folder)).named_modules())
    back = renamer(loaded.family.renamed)
    for target in targets_of(loaded).values():
        for name, module in zip(target.entry.names, target.modules, strict=True):
            assert back(f"{module}.weight") == name
            linear = isinstance(modules[module], torch.nn.Linear | transformers.pytorch_utils.Conv1D)
            assert linear or type(modules[module]).__name__.startswith(("Conv", "Embedding")) or target.is_table
            assert isinstance(modules[module], transformers.pytorch_utils.Conv1D) == target.is_turned
            assert tuple(modules[module].weight.shape) == target.entry.shape
    names, rows = modules_of(loaded), loaded.family.rows(loaded.architecture)
    head = [each for each in resolve(rows, plain(loaded.model)) if each.row in loaded.architecture.head]
    assert {names[name] for each in head for name in each.names} <= {*modules}  # as `modules_to_save` names them
