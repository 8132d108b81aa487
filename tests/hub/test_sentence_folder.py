"""Folders of sentence-transformers: written, read, written again; vectors by the modules, and what is refused."""

import json
import pickle
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.convert import load_orbax, save_orbax
from flax_transformer.hub.sentence_folder import lengths_of, prompts_of
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.text.sentence import DenseConfig, sentence_encoder
from flax_transformer.nn import EmbeddingConfig, transformer_block, with_fields

pytestmark = pytest.mark.proves("sentence", "weights", "both ways")

ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=33, embed=8, position="learned", max_length=16, types=2, norm=1e-12, scaled=False, init_std=0.5
    ),
    block=transformer_block(embed=8, heads=2, inner=12, norm_eps=1e-12, activation="gelu", init_std=0.5),
    depth=2,
)
HEADS = {
    "plain": {},
    "two pools": {"pools": ("first", "mean by position"), "normalise": True},
    "another order": {"pools": ("mean", "first"), "include_prompt": False},
    "dense": {"dense": (DenseConfig(width=6), DenseConfig(width=4, activation="identity", bias=False))},
}
IDS = np.array([[1, 5, 6, 7, 2], [1, 9, 2, 3, 3]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def made(name="dense", **fields):
    model = sentence_encoder(ENCODER, **HEADS[name]).build(nnx.Rngs(0))
    return hub.wrap(model, "BertModel", pad_token_id=3, **fields)


@pytest.fixture
def folder(tmp_path):
    hub.save(made(), tmp_path / "made")
    return tmp_path / "made"


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.rotates
@pytest.mark.parametrize("name", HEADS)
def test_what_is_saved_is_loaded_and_saved_as_the_same(tmp_path, name):
    pretrained = made(name)
    hub.save(pretrained, tmp_path / "one")
    again = hub.load(tmp_path / "one")
    assert again.model.cfg == pretrained.model.cfg
    assert again.architecture.uses == ("sentence-similarity",)
    hub.save(again, tmp_path / "two")
    assert files(tmp_path / "two") == files(tmp_path / "one")
    expected = pretrained(input_ids=IDS, attention_mask=MASK).sentence_embedding
    np.testing.assert_array_equal(again(input_ids=IDS, attention_mask=MASK).sentence_embedding, expected)
    assert expected.shape == (2, pretrained.model.cfg.head.width)
    by_model = pretrained.model.output(pretrained.model.hidden_states(jnp.asarray(IDS), lengths=jnp.array([5, 3])))
    np.testing.assert_allclose(by_model, expected, atol=1e-6)


@pytest.mark.rotates
def test_several_texts_a_row_are_those_alone():
    model = made().model
    lengths = jnp.array([[5, 3], [3, 5]])
    ids = jnp.asarray(np.stack([IDS, IDS[::-1]]))
    both = model.output(model.hidden_states(ids, lengths=lengths))
    for row, length, found in zip(ids, lengths, both, strict=True):
        np.testing.assert_allclose(found, model.output(model.hidden_states(row, lengths=length)), atol=1e-6)


def test_a_prompt_that_is_not_pooled_changes_what_is():
    pretrained = made("another order")
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    whole, without = (
        pretrained(**inputs, **given).sentence_embedding for given in ({}, {"prompt_length": jnp.int32(2)})
    )
    states = pretrained(**inputs).last_hidden_state
    np.testing.assert_allclose(without[0, :8], states[0, 2:].mean(0), atol=1e-6)
    np.testing.assert_allclose(without[1, 8:], states[1, 2], atol=1e-6)
    assert not np.allclose(whole, without)


def test_a_plain_checkpoint_becomes_one_with_modules_as_it_is_loaded(tmp_path):
    hub.save(made("plain"), tmp_path / "stack")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "stack" / name, bare / name)
    fields = {"sentence_transformers": {"modules": [{"kind": "Pooling", "path": "1_Pooling", "config": {}}]}}
    loaded = hub.load(bare, lenient=hub.Lenient(config=fields))
    np.testing.assert_array_equal(
        loaded(input_ids=IDS, attention_mask=MASK).sentence_embedding,
        made("plain")(input_ids=IDS, attention_mask=MASK).sentence_embedding,
    )


def test_an_orbax_folder_keeps_the_modules(tmp_path):
    pretrained = made("two pools")
    save_orbax(pretrained, tmp_path / "orbax")
    again = load_orbax(tmp_path / "orbax")
    np.testing.assert_array_equal(
        again(input_ids=IDS, attention_mask=MASK).sentence_embedding,
        pretrained(input_ids=IDS, attention_mask=MASK).sentence_embedding,
    )


@pytest.mark.rotates
def test_transforms_know_it_as_any_model():
    pretrained = made("two pools")

    def loss(pretrained):
        return jnp.sum(pretrained(input_ids=IDS, attention_mask=MASK).sentence_embedding * jnp.arange(16.0))

    value, gradient = jax.jit(jax.value_and_grad(loss))(pretrained)
    np.testing.assert_allclose(value, loss(pretrained), rtol=1e-5)
    table = np.asarray(gradient.model.backbone.embedding.token.embedding[...])
    assert (np.abs(table[[1, 5, 9]]).max(-1) > 0).all()
    assert not table[[3, 20]].any()
    rows = jax.vmap(lambda ids, mask: pretrained(input_ids=ids[None], attention_mask=mask[None]).sentence_embedding[0])
    np.testing.assert_allclose(
        rows(IDS, MASK), pretrained(input_ids=IDS, attention_mask=MASK).sentence_embedding, atol=1e-6
    )


def change(folder, name, **fields):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_prompts_and_lengths_are_those_of_the_files(folder):
    change(folder, "config_sentence_transformers.json", prompts={"query": "ask: ", "document": None},
           default_prompt_name="query")  # fmt: skip
    change(folder, "sentence_bert_config.json", max_seq_length=7, do_lower_case=True)
    fields = hub.load(folder).config
    assert prompts_of(fields) == ({"query": "ask: ", "document": ""}, "query")
    assert lengths_of(fields) == (7, True)


def test_the_transformer_may_lie_in_a_folder_of_its_own(tmp_path, folder):
    other = tmp_path / "old"
    (other / "0_Transformer").mkdir(parents=True)
    for path in folder.iterdir():
        inside = path.name in ("config.json", "model.safetensors", "sentence_bert_config.json")
        shutil.move(path, (other / "0_Transformer" if inside else other) / path.name)
    modules = json.loads((other / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (other / "modules.json").write_text(json.dumps(modules))
    pretrained = hub.load(other)
    hub.save(pretrained, tmp_path / "back")
    assert sorted(files(tmp_path / "back")) == sorted(files(other))
    np.testing.assert_array_equal(
        hub.load(tmp_path / "back")(input_ids=IDS).sentence_embedding, made()(input_ids=IDS).sentence_embedding
    )


def test_a_pickle_of_a_module_is_refused(folder):
    (folder / "2_Dense/model.safetensors").unlink()
    (folder / "2_Dense/pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match=r"2_Dense has only pytorch_model\.bin; such files can run code"):
        hub.load(folder)


def set_module(folder, number, **fields):
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    modules[number] |= fields
    path.write_text(json.dumps(modules))


BROKEN = {
    "unknown": (lambda f: set_module(f, 2, type="sentence_transformers.models.LSTM"),
                r"has the module 'sentence_transformers\.models\.LSTM'; supported are Transformer, Pooling, Dense"),
    "foreign": (lambda f: set_module(f, 1, type="mine.Pooling"), r"has the module 'mine\.Pooling'; supported are"),
    "outside": (lambda f: set_module(f, 1, path="../1"), r"must give each module a folder in its own, it has '\.\./1'"),
    "two": (lambda f: set_module(f, 1, type="sentence_transformers.models.Transformer"),
            "must begin with the one Transformer that it has, it has Transformer, Transformer"),
    "order": (lambda f: set_module(f, 1, type="sentence_transformers.models.Normalize"),
              "on top of a Transformer must be Pooling, any number of Dense, and perhaps Normalize, got Normalize"),
    "no list": (lambda f: (f / "modules.json").write_text("{}"), r"modules\.json must be a list of modules, it is {}"),
    "mode": (lambda f: change(f, "1_Pooling/config.json", pooling_mode="middle"),
             "pooling_mode as one or several of cls, max, mean, .*it is 'middle'|it is \\['middle'\\]"),
    "width": (lambda f: change(f, "1_Pooling/config.json", word_embedding_dimension=7),
              "a module must take what the one before gives, got 7 for 8 numbers"),
    "activation": (lambda f: change(f, "2_Dense/config.json", activation_function="mine.act"),
                   r"Dense must have one of the activations torch\.nn.*it has 'mine\.act'"),
    "residual": (lambda f: change(f, "2_Dense/config.json", use_residual=True), "of which only False is supported"),
    "task": (lambda f: change(f, "sentence_bert_config.json", transformer_task="fill-mask"),
             "has transformer_task='fill-mask'; supported is 'feature-extraction'"),
    "default": (lambda f: change(f, "config_sentence_transformers.json", default_prompt_name="ask"),
                "default_prompt_name must be one of the prompts , it is 'ask'"),
    "prompts": (lambda f: change(f, "config_sentence_transformers.json", prompts=[1]),
                r"must give prompts as texts by name, they are \[1\]"),
    "family": (lambda f: change(f, "config.json", model_type="vit"), "reads? no text|stand on a model of texts alone"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_understood_is_refused_in_a_sentence(folder, name):
    break_it, message = BROKEN[name]
    break_it(folder)
    with pytest.raises(ValueError, match=message) as caught:
        hub.load(folder)
    assert "\n" not in str(caught.value)


def test_a_head_that_no_module_can_say_is_refused():
    model = sentence_encoder(ENCODER, dense=(DenseConfig(width=2, activation="squared_relu"),)).build(nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"Dense has names for the activations .*, got 'squared_relu'"):
        hub.wrap(model, "BertModel")
    other = sentence_encoder(with_fields(ENCODER, norm_position="pre")).build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="a BertModel cannot be the model given"):
        hub.wrap(other, "BertModel")
