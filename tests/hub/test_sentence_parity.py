"""Sentence encoders against sentence-transformers: every pool, backbone and module, prompts, cuts, and both ways."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.task.embedding import embed
from tests.task.checkpoints import LETTERS, tokenizer_files

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("sentence", "parity", "every pool, dense layers, prompts, cuts; and written back"),
]

V = 40
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SMALL = {**SIZES, "vocab_size": V, "initializer_range": 0.3, "pad_token_id": 3}
CAUSAL = {**SMALL, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
BACKBONES = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL, max_position_embeddings=48)),
    "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**SMALL, max_position_embeddings=52)),
    "xlm-roberta": lambda: transformers.XLMRobertaModel(
        transformers.XLMRobertaConfig(**SMALL, max_position_embeddings=52)
    ),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(
            vocab_size=V, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=48, pad_token_id=3,
            initializer_range=0.3,
        )
    ),
    "modernbert": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(**{**SMALL, "num_hidden_layers": 4}, local_attention=6)
    ),
    "t5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=V, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, pad_token_id=3)
    ),
    "mistral": lambda: transformers.MistralModel(transformers.MistralConfig(**CAUSAL)),
    "qwen3": lambda: transformers.Qwen3Model(transformers.Qwen3Config(**CAUSAL)),
}  # fmt: skip
DRAW = np.random.default_rng(0)
TEXTS = ["".join(DRAW.choice([*LETTERS], n)).strip() or "a" for n in (3, 9, 1, 30, 60, 17, 8, 2, 44, 5)]
PROMPTS = {"query": "ask this ", "passage": "read "}


def made(tmp_path, backbone="bert", *, pools=("mean",), layers=(), most=None, lower=False, prompts=None,
         side="right", **pooling):  # fmt: skip
    """Save a model of the library: random parameters, a token a letter."""
    torch.manual_seed(0)
    inner = tmp_path / "inner"
    model = BACKBONES[backbone]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(inner)
    marks = "<s> $A </s>" if backbone not in ("t5", "mistral", "qwen3") else "$A </s>"
    for name, text in tokenizer_files(marks, padding_side=side, model_max_length=40).items():
        (inner / name).write_text(text)
    transformer = modules.Transformer(str(inner), max_seq_length=most, do_lower_case=lower)
    pool = modules.Pooling(16, pooling_mode=pools, **pooling)
    found = st.SentenceTransformer(modules=[transformer, pool, *layers], device="cpu", **(prompts or {}))
    found.save(str(tmp_path / "theirs"))
    return found, tmp_path / "theirs"


def check(library, folder, tmp_path, **prompt):
    ours = hub.load(folder)
    given = {"prompt_name": prompt["prompt"]} if prompt.get("prompt") in PROMPTS else prompt
    expected = library.encode(TEXTS, batch_size=4, **given)
    np.testing.assert_allclose(embed(ours, TEXTS, **prompt), expected, atol=1e-5 * max(np.abs(expected).max(), 1))
    hub.save(ours, tmp_path / "back")
    again = st.SentenceTransformer(str(tmp_path / "back"), device="cpu")
    np.testing.assert_array_equal(again.encode(TEXTS, batch_size=4, **given), expected)
    for path in folder.rglob("*.safetensors"):
        theirs, back = load_file(path), load_file(tmp_path / "back" / path.relative_to(folder))
        assert sorted(theirs) == sorted(back)
        for name in theirs:
            np.testing.assert_array_equal(theirs[name], back[name])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pool", modules.Pooling.POOLING_MODES)
def test_every_pool(tmp_path, pool, side):
    """Padding on the left where positions are rotary: learned ones would count it."""
    library, folder = made(tmp_path, "bert" if side == "right" else "qwen3", pools=(pool,), side=side)
    check(library, folder, tmp_path)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_backbone_with_the_last_token_beside_the_mean(tmp_path, backbone):
    side = "left" if backbone == "qwen3" else "right"
    library, folder = made(tmp_path, backbone, pools=("mean", "lasttoken"), side=side)
    check(library, folder, tmp_path)


def test_dense_layers_normalisation_and_lower_case(tmp_path):
    layers = [
        modules.Dense(48, 12, activation_function=torch.nn.GELU()),
        modules.Dense(12, 5, bias=False, activation_function=torch.nn.Identity()),
        modules.Normalize(),
    ]
    library, folder = made(tmp_path, pools=("cls", "max", "mean"), layers=layers, lower=True)
    check(library, folder, tmp_path)


@pytest.mark.parametrize("prompt", [None, "query", "other: ", ""])
@pytest.mark.parametrize(("backbone", "side", "include"), [("bert", "right", True), ("bert", "right", False),
                                                           ("qwen3", "left", False)])  # fmt: skip
def test_prompts(tmp_path, prompt, backbone, side, include):
    library, folder = made(
        tmp_path, backbone, side=side, pools=("cls", "weightedmean", "mean"), include_prompt=include,
        prompts={"prompts": PROMPTS, "default_prompt_name": "passage"},
    )  # fmt: skip
    check(library, folder, tmp_path, **({} if prompt is None else {"prompt": prompt}))


@pytest.mark.parametrize("include", [True, False])
def test_texts_are_cut(tmp_path, include):
    prompts = {"prompts": PROMPTS, "default_prompt_name": "query"}
    library, folder = made(tmp_path, most=19, include_prompt=include, prompts=prompts)
    check(library, folder, tmp_path)
    assert library.max_seq_length == 19


def test_a_folder_of_an_older_version(tmp_path):
    library, folder = made(tmp_path, pools=("mean", "max"), most=None)
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True})
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    old = json.loads((folder / "modules.json").read_text())
    for each in old:
        each["type"] = f"sentence_transformers.models.{each['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(old))
    library = st.SentenceTransformer(str(folder), device="cpu")
    assert library.max_seq_length == 12
    check(library, folder, tmp_path)


def test_without_a_pooler(tmp_path):
    library, folder = made(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    from safetensors.numpy import save_file

    kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    check(library, folder, tmp_path)


def test_a_folder_made_here_is_opened_by_the_library(tmp_path):
    from flax import nnx

    from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
    from flax_transformer.models.text.sentence import DenseConfig, sentence_encoder
    from tests.hub.test_sentence_folder import ENCODER

    for name, text in tokenizer_files("<s> $A </s>", model_max_length=16).items():
        (tmp_path / name).write_text(text)
    tokenizer = load_hub_tokenizer(tmp_path)
    for i, head in enumerate((
        {"pools": ("first", "mean"), "normalise": True}, {"pools": ("mean", "max", "last"), "include_prompt": False},
        {"dense": (DenseConfig(width=6, activation="relu"),)},
    )):  # fmt: skip
        model = sentence_encoder(ENCODER, **head).build(nnx.Rngs(0))
        pretrained = hub.wrap(model, "BertModel", tokenizer=tokenizer, pad_token_id=3)
        hub.save(pretrained, tmp_path / str(i))
        library = st.SentenceTransformer(str(tmp_path / str(i)), device="cpu")
        np.testing.assert_allclose(embed(pretrained, TEXTS), library.encode(TEXTS), atol=1e-5)
