"""Recipes that learn without labels: what a run measures, that labels are in no batch of training, that it resumes as
if uninterrupted with teacher, queue and everything drawn at random, and what its export is.
"""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import DrawnShapes, LabelledImageData
from flax_transformer.metric.effective_rank import effective_rank
from flax_transformer.nn import with_fields
from flax_transformer.objective import BYOLLoss, MoCoLoss, SimCLRLoss, Views
from flax_transformer.task.evaluator import Finished
from flax_transformer.task.experiment import train
from flax_transformer.task.feature_evaluator import (
    EmbeddingMap,
    EmbeddingRank,
    LinearProbe,
    NearestNeighbours,
    neighbour_votes,
)
from flax_transformer.task.image_input import Augment
from flax_transformer.task.opened import Context
from flax_transformer.task.self_supervision import Features, UnlabelledImages
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.test_classify_images import experiments

SHAPES = LabelledImageData(shapes=DrawnShapes(train=48, held_out=16, size=12))
VARIANTS = tuple(experiments("self_supervised"))
CONTRACT = ("moco", "ibot")
"""Those with the most to resume: a queue, teachers, centres, masks, crops of two sizes."""
EVALUATORS = (
    NearestNeighbours(neighbours=3, count=2), LinearProbe(labels=(0.25, 1.0)), EmbeddingRank(), EmbeddingMap(),
)  # fmt: skip


def small(name, steps=2, **changes):
    """Make a recipe of a few steps with a model of one layer."""
    recipe = experiments("self_supervised")[name]
    sizes = {"embed": 8, "heads": 2, "inner": 8, "depth": 1, "unroll": 1, "hidden": 8}
    objective, model = recipe.objective, recipe.model
    if objective.views.local:
        objective = replace(objective, views=replace(objective.views, local_size=8, local=1), warmup_steps=2)
    if name == "moco":
        objective, sizes = replace(objective, queue=16), {**sizes, "groups": 2}
    if name == "relative":
        objective = replace(objective, gap=0)
    if name == "beit":
        model, objective = with_fields(model, grid=(3, 3), outputs=8), replace(objective, words=8)
    if name in ("mae", "simmim", "beit"):
        model = with_fields(model, **{n: v for n, v in sizes.items() if n != "hidden"})
    elif hasattr(model, "projector"):
        # The predictor's width is the projector's, not the encoder's.
        size = {n: v for n, v in sizes.items() if n not in ("hidden", "groups")}
        head = {n: sizes[n] for n in ("hidden", "groups") if n in sizes}
        prototypes = {"prototypes": 12} if model.projector.prototypes else {}
        model = replace(
            model, encoder=with_fields(model.encoder, **size),
            projector=replace(model.projector, embed=8, **head, **prototypes),
            predictor=model.predictor and replace(model.predictor, hidden=8),
        )  # fmt: skip
    recipe = replace(
        recipe, model=model, objective=objective, data=SHAPES, examples=replace(recipe.examples, rows=8),
        optimizer=replace(recipe.optimizer, schedule=ScheduleConfig(name="constant")), evaluators=EVALUATORS,
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2),
    )  # fmt: skip
    return replace(recipe, **changes)


def records(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


@pytest.mark.rotates
@pytest.mark.parametrize("name", [v if v == "mae" else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS])
@pytest.mark.proves("vit_mae", "train", "[`self_supervised`](../experiments/self_supervised.py)")
@pytest.mark.proves("learning without labels", "eleven methods, from images to an export and what it is worth")
def test_every_method_trains_measures_and_exports(name, tmp_path):
    train(small(name), tmp_path)
    validation, test = (next(r for r in records(tmp_path) if r["split"] == split) for split in ("validation", "test"))
    assert 0 <= validation["knn_accuracy"] <= 1
    assert validation["effective_rank"] >= 0
    assert {"loss", "knn_accuracy", "probe_accuracy", "probe_accuracy_25", "probe_accuracy_100"} <= test.keys()
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert all((tmp_path / each["picture"]).is_file() for each in samples)
    config = json.loads((tmp_path / "export/config.json").read_text())
    kinds = {"mae": "ViTMAEForPreTraining", "simmim": "ViTForMaskedImageModeling", "beit": "BeitForMaskedImageModeling"}
    assert config["architectures"] == [kinds.get(name, "ViTModel")]
    assert hub.load(tmp_path / "export").model.cfg is not None


@pytest.fixture(scope="module", params=[CONTRACT[0], pytest.param(CONTRACT[1], marks=pytest.mark.slow)])
def whole(request, tmp_path_factory):
    """A run of four steps, and one of two that goes on."""
    folders = [tmp_path_factory.mktemp(request.param) for _ in range(2)]
    train(small(request.param, 4), folders[0])
    train(small(request.param, 2), folders[1])
    train(small(request.param, 4), folders[1])
    return folders


@pytest.mark.rotates
@pytest.mark.proves("learning without labels", "a resumed run bit for bit, with queue, teacher, centres and views")
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(whole):
    """Views, masks and the order of keys are drawn again, queue, teacher and centres are where they were."""
    one, two = ([r for r in records(folder) if r["split"] != "train" or r["step"] > 2] for folder in whole)
    assert [r for r in one if r["step"] > 2] == [r for r in two if r["step"] > 2]
    models = [(folder / "export/model.safetensors").read_bytes() for folder in whole]
    assert models[0] == models[1]


def test_no_label_is_in_a_batch_of_training(tmp_path):
    opened = UnlabelledImages(rows=8).open(SHAPES, Context(folder=RunFolder(tmp_path), objective=SimCLRLoss()))
    batch = next(opened.batches)
    assert set(batch) == {"inputs", "weights"}
    assert set(batch["inputs"]) == {"images"}
    assert "labels" in next(iter(opened.validation()))
    assert opened.objective["views"].mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("objective", "changes", "sentence"),
    [
        (MoCoLoss(queue=1_000), {}, "at most the images of all others, got queue=1000, 8 rows of 48 images"),
        (SimCLRLoss(views=Views(size=16)), {}, "crops must not be larger than images, got size=16, images of 12×12"),
        (BYOLLoss(views=Views(size=13)), {}, "crops must not be larger than images, got size=13"),
    ],
)
def test_data_that_cannot_be_learned_from_are_refused_before_anything_runs(objective, changes, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        UnlabelledImages(rows=8, **changes).open(SHAPES, Context(folder=RunFolder(tmp_path), objective=objective))


def test_options_that_would_do_nothing_are_refused(tmp_path):
    with pytest.raises(ValueError, match="views are changed on the device"):
        UnlabelledImages(augment=Augment(flip=0.5))
    with pytest.raises(ValueError, match="begins with a new model"):
        UnlabelledImages().open(SHAPES, Context(folder=RunFolder(tmp_path), init="some", objective=SimCLRLoss()))
    with pytest.raises(ValueError, match=r"labels must be parts of the images of training, in \(0, 1\], got \(\)"):
        LinearProbe(labels=())


class Known:
    """A model whose features are its images."""

    cfg = None

    def hidden_states(self, images):
        return images.reshape(len(images), 1, -1)


jax.tree_util.register_pytree_node(Known, lambda m: ((), None), lambda *_: Known())


def held(images, labels):
    weights = np.ones(len(images), np.float32)
    return [{"inputs": {"images": images.astype(np.float32)}, "labels": labels, "weights": weights}]


def looked_at(folder, images, labels):
    """Make a run at an evaluation, whose model's vectors are its validation images."""
    context, objective = Context(folder=RunFolder(folder), objective=SimCLRLoss()), SimCLRLoss()
    opened = replace(UnlabelledImages(rows=8).open(SHAPES, context), validation=lambda: held(images, labels))
    return Finished(model=Known(), pretrained=None, opened=opened, objective=objective, folder=context.folder)


def test_neighbours_rank_and_collapse_are_told(capsys, tmp_path):
    draw, labels = np.random.default_rng(0), np.arange(40) % 2
    apart = draw.normal(size=(40, 4)) + np.eye(4)[labels] * 9
    run = looked_at(tmp_path, apart.reshape(40, 2, 2, 1), labels)
    assert NearestNeighbours(neighbours=5).watch(run, 1)["knn_accuracy"] == 1.0
    capsys.readouterr()
    rank = EmbeddingRank().watch(run, 1)["effective_rank"]
    assert 2.5 < rank <= 4
    assert capsys.readouterr().out == ""
    line = draw.normal(size=(40, 1)) * np.ones((1, 64))
    rank = EmbeddingRank().watch(looked_at(tmp_path, line.reshape(40, 8, 8, 1), labels), 1)["effective_rank"]
    assert rank == pytest.approx(1.0, abs=0.01)
    assert "the vectors collapse: those of 40 held-out images have an effective rank of 1.0, of 64" in (
        capsys.readouterr().out
    )
    assert effective_rank(np.ones((5, 3))) == 0.0
    assert effective_rank(np.concatenate([np.eye(3), -np.eye(3)])) == pytest.approx(3.0)


def test_evaluators_of_the_same_features_share_them(tmp_path, monkeypatch):
    """Images are encoded once for all that look at them, and again where vectors are made in another way."""
    draw, calls = np.random.default_rng(0), []
    run = looked_at(tmp_path, draw.normal(size=(40, 2, 2, 1)), np.arange(40) % 2)
    call = Features.__call__
    monkeypatch.setattr(Features, "__call__", lambda self, *given: calls.append(self.pool) or call(self, *given))
    NearestNeighbours().watch(run, 1)
    EmbeddingRank().watch(run, 1)
    assert calls == ["mean"]
    EmbeddingRank(features=Features(pool="first")).watch(run, 1)
    assert calls == ["mean", "first"]


def test_neighbours_vote_as_in_scikit_learn():
    neighbours = pytest.importorskip("sklearn.neighbors")
    draw = np.random.default_rng(1)
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (draw.normal(size=(n, 5)) for n in (60, 30)))
    labels = draw.integers(0, 3, 60)

    def weigh(distances):
        return np.exp((1 - distances) / 0.5)

    theirs = neighbours.KNeighborsClassifier(7, metric="cosine", weights=weigh).fit(train, labels).predict(test)
    scores = test @ train.T
    order = np.argsort(-scores, axis=1)[:, :7]
    ours = neighbour_votes(np.take_along_axis(scores, order, 1), labels[order], 0.5)
    assert ours.tolist() == theirs.tolist()
