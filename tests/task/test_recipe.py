"""A recipe: what it refuses, how the data size its model, and where it ends."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.data.text.plain import PlainText
from flax_transformer.hub.quantized.model import dequantize_model, quantized_kernels
from flax_transformer.models.encoder import MaskedLMConfig
from flax_transformer.models.preset import find_preset, module_of
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.led import led_base_16384
from flax_transformer.models.text.llama import llama_tiny
from flax_transformer.models.text.modernbert import modernbert_base
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.objective import TokenLoss
from flax_transformer.task.captioning import Captions
from flax_transformer.task.checkpoint import positions_of, written_positions_of
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe, check_length
from flax_transformer.task.run import open_run, open_translator
from flax_transformer.task.spec import Spec, longest, longest_sides, reaching, sized
from flax_transformer.task.summarisation import Summaries
from flax_transformer.task.text_generation import Continuations, TextLoss, TextWindows
from flax_transformer.task.translator import Search
from flax_transformer.train.config import from_json, to_json
from flax_transformer.train.folder import FolderError
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.lora import LoraConfig, merge_lora
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.models import families
from tests.objective.test_values import Contrastive
from tests.recipe import tiny_translation
from tests.shares import share

CONSTANT = OptimizerConfig(learning_rate=1e-3, schedule=ScheduleConfig(name="constant", warmup=1))
SHORT = TrainConfig(steps=2, log_every=1, eval_every=2, checkpoint_every=2)


def narrow():
    return families.narrow(gpt2_tiny())


def language_model(text, **changes):
    return Recipe(**{
        "model": narrow(), "family": "gpt2", "data": PlainText(text=text, holdout=0.3), "objective": TokenLoss(),
        "examples": TextWindows(vocabulary=VocabularyConfig(unit="character"), rows=4, length=16),
        "evaluators": (Continuations(count=2), TextLoss()), "optimizer": CONSTANT, "train": SHORT, **changes,
    })  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("the dog barks at the cat, and the cat runs home\n" * 40)
    return str(path)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return folder, train(language_model(text), folder)


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(families.TEXTS, 0, of=3))
def test_every_preset_is_sized_by_the_data_and_by_nothing_else(name):
    config = find_preset(name)()
    small = sized(config, Spec(uses=(), vocab=101, multiple=64))
    model = nnx.eval_shape(lambda: small.build(nnx.Rngs(0)))
    tables = [leaf.shape[0] for path, leaf in families_tables(model)]
    assert set(tables) == {128}
    embedding = getattr(config, "encoder", config) if isinstance(config, MaskedLMConfig) else config
    own = Spec(
        uses=(), vocab=embedding.embedding.vocab, multiple=embedding.embedding.multiple,
        next_sentence=getattr(config, "next_sentence", False),
    )  # fmt: skip
    assert sized(config, own) == config


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(families.IMAGES, 0, of=3))
def test_every_preset_of_pictures_is_sized_by_the_data(name):
    config = find_preset(name)()
    spec = Spec(uses=("classification",), classes=("a", "b", "c"), image=(448, 448, 1))
    small = sized(config, spec)
    model = nnx.eval_shape(lambda: small.build(nnx.Rngs(0)))
    batch = module_of(small).example_batch(small, 2)
    inputs = {name: jnp.asarray(x) for name, x in batch["inputs"].items()}
    assert inputs["images"].shape in ((2, 448, 448, 1), (2, 224, 224, 1))
    inputs["images"] = jnp.zeros((2, 448, 448, 1))
    inputs |= {"mask": jnp.ones((2, 448, 448), bool)} if "mask" in inputs else {}
    hidden = jax.eval_shape(lambda model: model.hidden_states(**inputs), model)
    if hasattr(small, "head"):
        pixels = hidden.shape[1:-1] if module_of(small).use == "image-segmentation" else ()  # each has scores
        assert jax.eval_shape(lambda model, hidden: model.output(hidden), model, hidden).shape == (2, *pixels, 3)


def families_tables(model):
    leaves = jax.tree_util.tree_leaves_with_path(model)
    return [
        (path, leaf) for path, leaf in leaves if ".token." in jax.tree_util.keystr(path, simple=True, separator=".")
    ]


def test_positions_are_limited_where_they_are_learned():
    assert longest(gpt2_tiny()) == gpt2_tiny().embedding.max_length
    assert longest(transformer_tiny()) is None
    config = led_base_16384()
    assert longest_sides(config) == (16_384, 1_024) == (positions_of(config), written_positions_of(config))
    assert longest_sides(gpt2_tiny()) == (longest(gpt2_tiny()),) * 2


@pytest.mark.parametrize(
    ("config", "positions"), [(llama_tiny(), 2_048), (modernbert_base(), 8_192), (t5_small(), None)]
)
def test_rotary_positions_are_those_that_the_model_is_for(config, positions):
    assert positions_of(config) == positions


def test_rows_may_be_longer_than_rotary_positions_were_for():
    assert reaching(llama_tiny(), 4_096).embedding.max_length == 4_096
    assert reaching(llama_tiny(), 7) == llama_tiny()
    assert reaching(gpt2_tiny(), 4_096) == gpt2_tiny()


def test_either_side_of_an_encoder_decoder_has_its_own_positions():
    check_length(Summaries(source_length=4_096, target_length=1_024, tokens=65_536), led_base_16384())
    with pytest.raises(ValueError, match="got target_length=1025, 1024 positions"):
        check_length(Summaries(source_length=4_096, target_length=1_025, tokens=65_536), led_base_16384())
    with pytest.raises(ValueError, match="got source_length=17000, 16384 positions"):
        check_length(Summaries(source_length=17_000, tokens=2**20), led_base_16384())


@pytest.mark.rotates
@pytest.mark.proves("gpt2", "train", "[`language_model`](../experiments/language_model.py)")
def test_a_run_ends_with_an_export_a_report_and_what_its_evaluators_say(finished):
    folder, model = finished
    loaded = hub.load(folder / "export")
    assert loaded.config["architectures"] == ["GPT2LMHeadModel"]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(loaded.model), jax.tree.leaves(model))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["split"] == "test"
    assert records[-1].keys() >= {"loss", "perplexity", "bits_per_character"}
    assert len((folder / "samples.jsonl").read_text().splitlines()) == 2
    assert (folder / "report.html").is_file()


@pytest.mark.rotates
def test_a_run_is_opened_by_what_its_folder_says(finished):
    folder, model = finished
    run = open_run(folder)
    assert run.recipe.data.holdout == 0.3
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(run.model), jax.tree.leaves(model))
    with pytest.raises(FolderError, match="is not a translation run: nothing in its recipe translates"):
        open_translator(folder)


@pytest.mark.slow
@pytest.mark.proves("gpt2", "train", "[`finetune_lora`](../experiments/finetune_lora.py)")
def test_factors_are_trained_beside_a_checkpoint_and_merged(finished, text, tmp_path, capsys):
    folder, model = finished
    adapted = language_model(
        text, model=None, family="", init=str(folder / "export"),
        lora=LoraConfig(rank=2, target_modules=("attn.c_attn", "c_fc")),
        optimizer=replace(CONSTANT, trainable=r"^lora\."),
    )  # fmt: skip
    trained = train(adapted, tmp_path / "lora")
    layers = {path.removeprefix("trunk.blocks.").removesuffix(".kernel") for path in trained.lora}
    assert layers == {"attention.query", "attention.key", "attention.value", "feedforward.up"}
    merged = jax.jit(merge_lora)(trained.base, trained.lora)
    assert "% of the model's" in capsys.readouterr().out
    base = hub.load(folder / "export")
    factors = hub.load_adapter(tmp_path / "lora" / "adapter", base)
    assert factors.keys() == trained.lora.keys()
    jax.tree.map(np.testing.assert_array_equal, factors, trained.lora)
    again = hub.load(tmp_path / "lora" / "adapter")
    for one, other in zip(jax.tree.leaves(again.model), jax.tree.leaves(merged), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    loaded = hub.load(tmp_path / "lora" / "export")
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(loaded.model), jax.tree.leaves(merged))
    assert any(bool((a != b).any()) for a, b in zip(*map(jax.tree.leaves, (model, merged)), strict=True))
    test = json.loads((tmp_path / "lora" / "metrics.jsonl").read_text().splitlines()[-1])
    np.testing.assert_allclose(test["loss_before"], json_last(folder)["loss"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "int4"])
def test_factors_are_trained_over_frozen_kernels_of_few_bits(finished, text, tmp_path, kind):
    folder, _ = finished
    rule = Quantization(weights=kind, group=8)
    adapted = language_model(
        text, model=None, family="", init=str(folder / "export"), lora=LoraConfig(rank=2), quantization=rule,
        optimizer=replace(CONSTANT, trainable=r"^lora\."),
    )  # fmt: skip
    trained = train(adapted, tmp_path / "lora")
    start = quantize_model(hub.load(folder / "export").model, rule)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(trained.base), jax.tree.leaves(start))
    assert any(bool((pair.b != 0).any()) for pair in trained.lora.values())
    merged = jax.jit(merge_lora)(dequantize_model(trained.base), trained.lora)
    loaded = hub.load(tmp_path / "lora" / "export")
    assert not quantized_kernels(loaded.model)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(loaded.model), jax.tree.leaves(merged))
    # A folder of few bits is the same start, and training goes on where it was.
    hub.save(replace(hub.load(folder / "export"), model=start), tmp_path / "few") if kind == "int4" else None
    if kind == "int4":
        same = replace(adapted, init=str(tmp_path / "few"))
        short = replace(same, train=replace(same.train, steps=2))
        train(short, tmp_path / "again")
        resumed = train(same, tmp_path / "again")
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(resumed), jax.tree.leaves(trained))


def json_last(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"examples": TextWindows(length=600)}, "length=600, 64 positions"),
        ({"train": replace(SHORT, keep_best=True, monitor="accuracy")}, "monitor must be one of loss, perplexity"),
        ({"objective": Contrastive(), "train": replace(SHORT, accumulate=2)}, "got train.accumulate=2"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(changes, rule):
    with pytest.raises(ValueError, match=rule):
        language_model("nowhere", **changes)


@pytest.mark.rotates
def test_a_model_of_no_family_is_trained_and_tested_without_an_export(text, tmp_path, capsys):
    train(language_model(text, family="", evaluators=(TextLoss(),)), tmp_path)
    assert not (tmp_path / "export").exists()
    assert json_last(tmp_path)["split"] == "test"
    assert f"checkpoints: {tmp_path / 'checkpoints'}" in capsys.readouterr().out
    with pytest.raises(ValueError, match="Continuations tests a checkpoint, which takes a family, got an empty one"):
        train(language_model(text, family=""), tmp_path / "other")
    with pytest.raises(ValueError, match=r"family must be one of .*gpt2.*, or empty, got 'gtp2'"):
        train(language_model(text, family="gtp2"), tmp_path / "other")


@pytest.mark.parametrize("changes", [{"model": None}, {"lora": LoraConfig()}])
def test_nothing_to_begin_with_is_said(changes, text, tmp_path):
    with pytest.raises(ValueError, match="nothing to adapt: give --init FOLDER"):
        train(language_model(text, **changes), tmp_path / "run")


SEARCH = Search(beams=1, batch=4)


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator") / "run"
    return folder, train(tiny_translation(search=SEARCH), folder)


@pytest.mark.rotates
@pytest.mark.proves("transformer", "train", "[`translate_text`](../experiments/translate_text.py)")
def test_a_translator_is_exported_as_marian_and_computes_the_same(translated):
    folder, model = translated
    loaded = hub.load(folder / "export")
    assert loaded.config["architectures"] == ["MarianMTModel"]
    assert model.cfg.embedding.position == "sinusoidal"
    inputs = loaded.tokenizer(["three hundred five", "seven"])
    assert [row[mask > 0][-1] for row, mask in zip(*inputs.values(), strict=True)] == [2, 2]
    target = jnp.array([[1, 9, 30], [1, 12, 40]])
    found = loaded(**inputs, decoder_input_ids=target).logits
    wanted = model(jnp.asarray(inputs["input_ids"]), target, jnp.asarray(inputs["attention_mask"].sum(1)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
def test_a_translators_run_is_opened_before_and_after_it_is_exported(translated):
    folder, model = translated
    translator, search = open_translator(folder)
    assert search == SEARCH
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(translator.model), jax.tree.leaves(model))
    assert not (folder / "export" / "pytorch_model.bin").exists()


def test_a_recipe_survives_its_file(text):
    recipe = language_model(text)
    assert from_json(to_json(recipe)) == recipe


def test_an_evaluator_of_other_things_is_refused_before_training(text, tmp_path):
    with pytest.raises(ValueError, match="Captions tests HeldCaptions, the examples hold out HeldText"):
        train(language_model(text, evaluators=(Captions(),)), tmp_path)
    assert not (tmp_path / "checkpoints").exists()
