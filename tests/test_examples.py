"""The worked examples of CONTRIBUTING.md do what they say, and touch no file outside their own."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.decode import Greedy
from flax_transformer.models.head import with_head
from flax_transformer.models.preset import abstract
from flax_transformer.nn import Grid, with_fields
from flax_transformer.task.attention import draw
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_translator
from flax_transformer.task.translator import Search, decode_batch
from flax_transformer.train.state import parameter_count
from tests.examples import DNA, FOLDER, RECURRENT, SERIES, TOWERS, records, registered, two_towers

ROOT = FOLDER.parent.parent
EXAMPLES = ("albert", "classify_dna", "classify_series", "poolformer", "recurrent", "two_towers")


def test_the_page_shows_every_example():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    shown = set(re.findall(r"\(docs/examples/(\w+\.py)\)", page))
    assert shown == {file.name for file in FOLDER.glob("*.py")} == {f"{name}.py" for name in EXAMPLES}


# An encoder family with foreign weights.

SIZES = {
    "vocab_size": 30, "embedding_size": 6, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 20, "max_position_embeddings": 10, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
    "hidden_act": "relu",
}  # fmt: skip
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


def tensors(rng):
    """Draw an AlbertForMaskedLM, by the names that `transformers` gives its tensors."""
    V, E, D, F = (SIZES[name] for name in ("vocab_size", "embedding_size", "hidden_size", "intermediate_size"))
    linears = {
        "albert.encoder.embedding_hidden_mapping_in": (D, E), f"{LAYER}.ffn": (F, D), f"{LAYER}.ffn_output": (D, F),
        "predictions.dense": (E, D),
        **{f"{LAYER}.attention.{part}": (D, D) for part in ("query", "key", "value", "dense")},
    }  # fmt: skip
    norms = {
        "albert.embeddings.LayerNorm": E, f"{LAYER}.attention.LayerNorm": D, f"{LAYER}.full_layer_layer_norm": D,
        "predictions.LayerNorm": E,
    }  # fmt: skip
    tables = {"word": V, "position": SIZES["max_position_embeddings"], "token_type": 2}
    shapes = {f"albert.embeddings.{name}_embeddings.weight": (rows, E) for name, rows in tables.items()}
    for name, shape in {**linears, **{name: (width,) for name, width in norms.items()}}.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes["predictions.bias"] = (V,)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def albert():
    with registered() as albert:
        yield albert


@pytest.fixture
def folder(tmp_path, albert):
    found = tensors(np.random.default_rng(0))
    config = {"model_type": "albert", "architectures": ["AlbertForMaskedLM"], **SIZES}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(found, tmp_path / "model.safetensors")
    return tmp_path


def forward(found, ids, types):
    """Compute the logits of one row of tokens, with NumPy, from the paper and the names of the tensors."""

    def linear(name, x):
        return x @ found[f"{name}.weight"].T + found[f"{name}.bias"]

    def norm(name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + SIZES["layer_norm_eps"])
        return x * found[f"{name}.weight"] + found[f"{name}.bias"]

    def heads(part, x):
        return np.split(linear(f"{LAYER}.attention.{part}", x), SIZES["num_attention_heads"], axis=-1)

    def attend(q, k, v):
        weights = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
        return weights / weights.sum(-1, keepdims=True) @ v

    table, place, kind = (found[f"albert.embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type"))
    x = norm("albert.embeddings.LayerNorm", table[ids] + place[: len(ids)] + kind[types])
    x = linear("albert.encoder.embedding_hidden_mapping_in", x)
    for _ in range(SIZES["num_hidden_layers"]):
        each = zip(*(heads(part, x) for part in ("query", "key", "value")), strict=True)
        seen = np.concatenate([attend(*qkv) for qkv in each], axis=-1)
        x = norm(f"{LAYER}.attention.LayerNorm", x + linear(f"{LAYER}.attention.dense", seen))
        inner = np.maximum(linear(f"{LAYER}.ffn", x), 0)
        x = norm(f"{LAYER}.full_layer_layer_norm", x + linear(f"{LAYER}.ffn_output", inner))
    x = norm("predictions.LayerNorm", np.maximum(linear("predictions.dense", x), 0))
    return x @ table.T + found["predictions.bias"]


@pytest.mark.rotates
def test_a_family_of_ones_own_opens_a_checkpoint_and_gives_its_values(folder):
    found, pretrained = load_file(folder / "model.safetensors"), hub.load(folder)
    rng = np.random.default_rng(1)
    ids, types = rng.integers(30, size=(2, 7)), rng.integers(2, size=(2, 7))
    expected = np.stack([forward(found, *row) for row in zip(ids, types, strict=True)])
    np.testing.assert_allclose(
        pretrained(input_ids=ids, token_type_ids=types).logits, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
    )
    mask = np.broadcast_to(np.arange(7) < 5, (2, 7)).astype(int)
    padded = pretrained(input_ids=ids * mask, token_type_ids=types, attention_mask=mask)
    alone = np.stack([forward(found, row[:5], kinds[:5]) for row, kinds in zip(ids, types, strict=True)])
    np.testing.assert_allclose(padded.logits[:, :5], alone, rtol=1e-5, atol=1e-5 * np.abs(alone).max())


def test_it_is_saved_as_it_was(folder, tmp_path):
    pretrained = hub.load(folder)
    hub.save(pretrained, tmp_path / "again")
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said == {**json.loads((folder / "config.json").read_text()), "dtype": "float32"}


@pytest.mark.rotates
def test_a_model_of_it_made_here_is_a_checkpoint_too(albert, folder, tmp_path):
    config = with_fields(hub.load(folder).model.cfg.encoder, depth=2, max_length=16)
    model = config.build(nnx.Rngs(0))
    assert isinstance(model, albert.Albert)
    head = albert.ARCHITECTURES["AlbertModel"].config(hub.load(folder).config)
    whole = replace(head, backbone=config).build(nnx.Rngs(0))
    hub.save(hub.wrap(whole, "AlbertModel"), tmp_path / "made")
    jax.tree.map(np.testing.assert_array_equal, hub.load(tmp_path / "made").model, whole)


def test_what_a_family_cannot_do_or_be_is_refused(albert, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_groups": 2}))
    with pytest.raises(ValueError, match="num_hidden_groups=2, of which only 1 is supported"):
        hub.load(folder)
    family = albert.FAMILIES["albert"]
    hub.register({"albert": family})  # again, as in a notebook
    with pytest.raises(ValueError, match="must not take names of another, got 'bert' with names of 'bert'"):
        hub.register({"bert": replace(family, model_type="bert")})
    with pytest.raises(ValueError, match="registered by its model_type, 'albert', got 'light'"):
        hub.register({"light": family})


# A classification task on new data.


@pytest.mark.rotates
def test_a_task_on_new_data_learns_and_ends_with_a_checkpoint_and_a_report(tmp_path, capsys):
    train(DNA, tmp_path)
    test = records(tmp_path)[-1]
    assert test["accuracy"] > 0.8
    assert f"test accuracy {100 * test['accuracy']:.2f} % on 400 sentences" in capsys.readouterr().out
    assert "island" in (tmp_path / "report.html").read_text()
    pretrained = hub.load(tmp_path / "export")
    assert pretrained.config["id2label"] == {"0": "other", "1": "island"}
    pieces = DNA.data.read("test")
    ids = pretrained.tokenizer(pieces["text"][:64], max_length=64, truncate=True)
    guessed = pretrained(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).logits.argmax(-1)
    assert np.mean(np.asarray(guessed) == pieces["label"][:64]) > 0.7


# A modality that the package has none of.


@pytest.mark.rotates
def test_a_new_modality_learns_and_ends_with_checkpoints_and_a_report(tmp_path, capsys):
    train(SERIES, tmp_path)
    test = records(tmp_path)[-1]
    assert test["accuracy"] > 0.6
    assert f"test accuracy {100 * test['accuracy']:.2f} % on 100 recordings" in capsys.readouterr().out
    assert "sawtooth" in (tmp_path / "report.html").read_text()
    assert len(list((tmp_path / "samples").iterdir())) > 3


# A family of networks for images.


@pytest.fixture(scope="module")
def poolformer():
    with registered("poolformer") as poolformer:
        yield poolformer


def test_the_published_network_has_as_many_parameters(poolformer):
    assert round(parameter_count(abstract(poolformer.poolformer_s12())) / 1e6, 1) == 11.9


@pytest.mark.rotates
def test_a_network_for_images_is_fed_any_size_and_saved_as_it_was(poolformer, tmp_path):
    config = poolformer.PoolFormerConfig(widths=(8, 12, 16, 20), depths=(1, 2, 1, 1), ratio=2.0, end_norm=True)
    made = hub.wrap(with_head(config, outputs=3, pool="mean").build(nnx.Rngs(0)), "PoolFormerForImageClassification")
    hub.save(made, tmp_path)
    read = hub.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, read.model, made.model)
    rng = np.random.default_rng(0)
    for size in ((64, 48), (37, 90)):
        images = rng.normal(size=(2, 3, *size)).astype(np.float32)
        both, one = read(pixel_values=images), read(pixel_values=images[1:])
        np.testing.assert_allclose(both.logits[1:], one.logits, atol=1e-5)
        assert not np.allclose(both.logits[0], both.logits[1])
    flat = np.full((1, 3, 64, 64), 0.5, np.float32)
    near = config.build(nnx.Rngs(0)).stage1.blocks  # the mean of equal neighbours, less the position itself
    pooled = poolformer.Pooling(poolformer.PoolingConfig(embed=3))(
        jnp.moveaxis(flat, 1, -1).reshape(1, -1, 3), grid=Grid(64, 64)
    )
    assert near.pooling_residual.layer_scale.shape == (1, 8)
    np.testing.assert_allclose(pooled, 0, atol=1e-6)
    with pytest.raises(ValueError, match="window must be an odd number, got 4"):
        poolformer.PoolingConfig(embed=8, window=4)


# Two towers.


@pytest.mark.rotates
def test_the_contrastive_loss_is_what_it_says_and_sees_the_whole_batch():
    model = TOWERS.model.build(nnx.Rngs(0))
    rng = np.random.default_rng(0)
    texts = {
        side: {"tokens": jnp.asarray(rng.integers(300, size=(6, 5))), "lengths": jnp.asarray(rng.integers(1, 6, 6))}
        for side in two_towers.SIDES
    }
    total, metrics = two_towers.Contrastive()(model, {"inputs": texts})
    ends = [np.asarray(model.embed(side, **texts[side])) for side in two_towers.SIDES]
    np.testing.assert_allclose(np.linalg.norm(ends, axis=-1), 1, rtol=1e-5)
    scores = 10 * ends[0] @ ends[1].T
    chances = [np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in (scores, scores.T)]
    np.testing.assert_allclose(total, -np.log([np.diag(each) for each in chances]).sum() / 2, rtol=1e-4)
    assert metrics["count"] == 6
    half = jax.tree.map(lambda x: x[:3], texts)
    assert float(two_towers.Contrastive()(model, {"inputs": half})[0]) < 0.45 * float(total)  # fewer to be told from


def test_a_batch_whose_rows_are_compared_is_not_cut():
    with pytest.raises(ValueError, match="Contrastive compares the rows of a batch, which must stay whole, got"):
        replace(TOWERS, train=replace(TOWERS.train, accumulate=2))


def test_rows_that_fill_up_a_batch_are_not_compared_with():
    lay_out = two_towers.BothSides(length=4)
    batch = lay_out([{"source": [1, 2], "target": [3]}, None])
    assert batch["inputs"]["source"]["tokens"].tolist() == [[1, 2, 0, 0]]


# A recurrent encoder-decoder.


@pytest.mark.rotates
def test_a_recurrent_model_is_decoded_by_the_loops_of_all_others():
    model = RECURRENT.model.build(nnx.Rngs(3))
    rng = np.random.default_rng(0)
    source, lengths = jnp.asarray(rng.integers(3, 460, (3, 6))), jnp.array([6, 2, 4])
    config = Greedy(max_length=7, eos=1, pad=0)
    found = decode_batch(model, source, lengths, config=config, bos=2)
    target = jnp.concatenate([jnp.full((3, 1), 2), found.best.tokens], axis=1)
    whole = jax.nn.log_softmax(model.output(model.hidden_states(source, target[:, :-1], lengths=lengths)).logits())
    for row in range(3):
        n = int(found.best.lengths[row])
        assert found.best.tokens[row, :n].tolist() == whole[row, :n].argmax(-1).tolist()
        np.testing.assert_allclose(found.best.logprobs[row, :n], whole[row, :n].max(-1), rtol=1e-4, atol=1e-5)
    together = model.hidden_states(source, target[:, :-1], lengths=lengths)[1]
    alone = model.hidden_states(source[1:2, :2], target[1:2, :-1], lengths=lengths[1:2])[0]
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where each recipe has been trained, and its final model."""
    folders = [tmp_path_factory.mktemp(type(recipe.model).__name__) for recipe in (TOWERS, RECURRENT)]
    return [(folder, train(recipe, folder)) for folder, recipe in zip(folders, (TOWERS, RECURRENT), strict=True)]


@pytest.mark.rotates
def test_recipe_evaluator_and_translator_take_a_recurrent_model(trained):
    folder, model = trained[1]
    assert records(folder)[-1].keys() >= {"exact_match", "chrf"}
    assert not (folder / "export").exists()
    translator, search = open_translator(folder, ("flax_transformer", "recurrent"))
    assert search == Search(beams=2)
    jax.tree.map(np.testing.assert_array_equal, translator.model, model)
    texts = ["one hundred two", "seven"]
    narrow, wide = (translator(texts, Search(beams=beams, ratio=0.0)) for beams in (1, 3))
    assert all(one[0].score <= more[0].score + 1e-6 for one, more in zip(narrow, wide, strict=True))
    (maps,) = draw(translator, "seven", wide[0][0].tokens).maps
    np.testing.assert_allclose(maps.weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.slow
def test_eight_devices_train_as_one_does(trained):
    for (folder, _), mesh in zip(trained, on_eight(Path(__file__).parent / "examples.py")[0], strict=True):
        one = records(folder)
        assert len(one) == len(mesh) == 6
        for expected, found in zip(one, mesh, strict=True):
            for name in expected.keys() & {"loss", "gradient_norm", "accuracy", "perplexity"}:
                np.testing.assert_allclose(found[name], expected[name], rtol=2e-5)
