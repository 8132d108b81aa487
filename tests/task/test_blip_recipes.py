"""Recipes of BLIP: learning to match by reading together, going on from checkpoints, and writing captions."""

from dataclasses import replace

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.models.multimodal.blip import blip_text, blip_towers, blip_vision, blip_writer
from flax_transformer.models.multimodal.grounded import GroundedConfig
from flax_transformer.models.multimodal.retrieval import RetrievalConfig
from flax_transformer.models.multimodal.towers import TwoTowers
from flax_transformer.nn import with_fields
from flax_transformer.objective import ContrastiveLoss, MatchLoss, TokenLoss
from flax_transformer.task.captioning import CaptionedImages, Captions, ImageCaptions, caption
from flax_transformer.task.embedding import choose
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import Context
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.retrieval import RetrievalEvaluator
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from tests.task.test_matched import SHAPES, records

pytestmark = pytest.mark.rotates

SMALL = {"embed": 8, "heads": 2, "depth": 1}
VISION, TEXT = blip_vision(image=8, patch=4, **SMALL), blip_text(8, vocab=300, length=16, **SMALL)
READER = RetrievalConfig(encoder=GroundedConfig(vision=VISION, text=TEXT), width=6)


def recipe(**parts):
    common = {
        "data": SHAPES, "examples": CaptionedImages(rows=8, length=16), "evaluators": (RetrievalEvaluator(),),
        "optimizer": OptimizerConfig(learning_rate=1e-3),
        "train": TrainConfig(steps=2, log_every=1, eval_every=2, checkpoint_every=2),
    }  # fmt: skip
    return Recipe(**{**common, **parts})


@pytest.fixture(scope="module")
def matched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matched")
    return folder, train(recipe(model=READER, family="blip", objective=MatchLoss()), folder)


@pytest.mark.proves(("blip", "retrieval"), "train", "`MatchLoss`: hard negatives of the batch")
def test_a_run_learns_to_match_and_its_export_does(matched):
    folder, model = matched
    last = records(folder)[-1]
    assert {"contrast_loss", "match_loss", "match_accuracy", "recall"} <= last.keys()
    exported = hub.load(folder / "export")
    assert exported.config["architectures"] == ["BlipForImageTextRetrieval"]
    examples = CaptionedImages(rows=8, length=16, size=8)
    batch = next(iter(examples.open(SHAPES, Context(folder=RunFolder(folder))).test()))["inputs"]
    mask = np.arange(batch["tokens"].shape[1]) < batch["lengths"][:, None]
    got = exported(
        input_ids=batch["tokens"], attention_mask=mask.astype(int), pixel_values=np.moveaxis(batch["images"], -1, 1)
    )
    seen = model.hidden_states(**batch)
    np.testing.assert_allclose(got.logits_per_text, seen.first @ seen.second.T, atol=1e-5)
    expected = model.match(batch["tokens"], seen.states, lengths=batch["lengths"])
    np.testing.assert_allclose(got.itm_score, expected, atol=1e-5)


@pytest.mark.slow
def test_contrastive_training_goes_on_from_either_class(matched, tmp_path):
    """From what reads together, and from two towers."""
    folder, _ = matched
    tokenizer, processor = (getattr(hub.load(folder / "export"), name) for name in ("tokenizer", "processor"))
    vocab = tokenizer.vocab_size
    towers = with_fields(blip_towers(replace(VISION, norm="none"), TEXT, 6), vocab=vocab)
    both = TwoTowers(towers, rngs=nnx.Rngs(0))
    hub.save(hub.wrap(both, "BlipModel", tokenizer=tokenizer, processor=processor), tmp_path / "towers")
    for name, start in (("BlipForImageTextRetrieval", folder / "export"), ("BlipModel", tmp_path / "towers")):
        train(recipe(init=str(start), objective=ContrastiveLoss()), tmp_path / name)
        exported = hub.load(tmp_path / name / "export")
        assert exported.config["architectures"][0] == name
        before, after = (load_file(each / "model.safetensors") for each in (start, tmp_path / name / "export"))
        assert before.keys() == after.keys()
        assert any(not np.array_equal(before[each], after[each]) for each in before if "qkv" in each)
    shown = SHAPES.open().splits["test"]["image"][0]
    shown.save(tmp_path / "shape.png")
    (labels,) = choose(exported, [tmp_path / "shape.png"], ["a red cross", "a blue circle"])
    assert np.isclose(sum(label.probability for label in labels), 1)


@pytest.mark.slow
def test_captions_are_learned_and_written(tmp_path):
    writer = blip_writer(VISION, TEXT)
    run = recipe(
        model=writer, family="blip", objective=TokenLoss(), evaluators=(Captions(beams=2),),
        examples=ImageCaptions(rows=8, length=16),
    )  # fmt: skip
    train(run, tmp_path / "run")
    exported = hub.load(tmp_path / "run/export")
    text = exported.config["text_config"]
    assert text["sep_token_id"] == text["eos_token_id"] == exported.tokenizer.eos
    SHAPES.open().splits["test"]["image"][0].save(tmp_path / "shape.png")
    (said,) = caption(exported, [tmp_path / "shape.png"], max_new_tokens=5)
    assert isinstance(said, str)
    train(replace(run, init=str(tmp_path / "run/export")), tmp_path / "again")
    assert hub.load(tmp_path / "again/export").config["architectures"] == ["BlipForConditionalGeneration"]
