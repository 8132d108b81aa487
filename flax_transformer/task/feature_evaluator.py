"""What vectors of images are worth that were learned without labels: by neighbours, by a linear probe, by their rank.

Axes: N Q images, D width.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from flax_transformer.data.split import stratified_subset
from flax_transformer.frozen import frozen
from flax_transformer.metric.effective_rank import effective_rank
from flax_transformer.ops.nearest import nearest
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.probe import probe
from flax_transformer.task.retrieval import strip
from flax_transformer.task.self_supervision import Features, HeldViews

Vectors = Float[np.ndarray, "_ D"]


def unit_rows(vectors: Vectors) -> Vectors:
    """Return vectors of length 1 in the same directions; one of zeros stays."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def neighbour_votes(
    scores: Float[np.ndarray, "Q K"], labels: Int[np.ndarray, "Q K"], temperature: float
) -> Int[np.ndarray, " Q"]:
    """Return the class with the most votes of each query's neighbours, of weight exp(cosine / temperature) (Wu et al.
    2018, https://arxiv.org/abs/1805.01978); of equal ones the first.

    >>> neighbour_votes(np.array([[0.9, 0.8, 0.8]]), np.array([[0, 1, 1]]), 1.0).tolist()
    [1]
    """
    votes = np.zeros((len(scores), int(labels.max()) + 1))
    weights = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
    np.add.at(votes, (np.arange(len(scores))[:, None], labels), weights)
    return votes.argmax(axis=1)


@frozen
class FeatureEvaluator(Evaluator):
    """What these have in common: vectors of `HeldViews`, by the encoder alone, which is not changed."""

    takes: ClassVar[type] = HeldViews

    features: Features = Features()
    """How vectors are made."""
    train: int = 10_000
    """Images of training at most that are looked at, of each class its share."""

    def known(self, finished: Finished, count: int) -> tuple[Vectors, Int[np.ndarray, " N"]]:
        """Return vectors and labels of so many images of training, of each class its share."""
        held = finished.opened.held
        labels = np.asarray(held.train["label"])
        count = min(max(count, len(held.classes)), len(labels))
        names = [str(number) for number in range(len(labels))]
        return finished.once(
            (self.features, "train", count),
            lambda: self.features(finished.model, held.train_batches(stratified_subset(names, labels, count, seed=0))),
        )

    def asked(self, finished: Finished) -> tuple[Vectors, Int[np.ndarray, " Q"]]:
        """Return vectors and labels of the test images, which all evaluators of the same features share."""
        return finished.once((self.features, "test"), lambda: self.features(finished.model, finished.opened.test()))

    def looked_at(self, finished: Finished, most: int) -> tuple[Vectors, Int[np.ndarray, " N"]]:
        """Return vectors and labels of the first validation images, shared likewise."""
        return finished.once(
            (self.features, "validation", most),
            lambda: self.features(finished.model, finished.opened.validation(), most),
        )


@frozen
class NearestNeighbours(FeatureEvaluator):
    """Classify each test image by the images of training that are nearest to it by their cosine.

    During training the accuracy is that of validation images among themselves, each by the others.
    """

    metric: ClassVar[str] = "knn_accuracy"
    validates: ClassVar[bool] = True

    neighbours: int = 20
    """How many vote."""
    temperature: float = 0.07
    """How much more the nearest of them count."""
    validation: int = 1_000
    """Validation images at most."""
    count: int = 12
    """Test images that the report shows with their neighbours."""

    def __post_init__(self):
        if min(self.neighbours, self.validation, self.train) < 1 or self.temperature <= 0:
            raise ValueError(
                "neighbours, validation and train must be at least 1, temperature positive, got "
                f"{self.neighbours}, {self.validation}, {self.train} and {self.temperature}"
            )

    def watch(self, finished: Finished, step: int) -> Mapping[str, float]:
        """Classify validation images by each other."""
        vectors, labels = self.looked_at(finished, self.validation)
        vectors, k = unit_rows(vectors), min(self.neighbours, len(vectors) - 1)
        if k < 1:
            return {}
        scores = vectors @ vectors.T
        np.fill_diagonal(scores, -np.inf)
        order = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        best = np.take_along_axis(scores, order, axis=1)
        return {self.metric: float(np.mean(neighbour_votes(best, labels[order], self.temperature) == labels))}

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        (known, classes), (asked, truth) = self.known(finished, self.train), self.asked(finished)
        scores, order = map(np.asarray, nearest(unit_rows(known), unit_rows(asked), min(self.neighbours, len(known))))
        predicted = neighbour_votes(scores, classes[order], self.temperature)
        accuracy = float(np.mean(predicted == truth))
        metrics = tested(finished.objective, finished.model, finished.opened.test())
        line = (
            f"{100 * accuracy:.2f} % of {len(truth):,} test images have the class of their {order.shape[1]} nearest "
            f"neighbours among {len(known):,}"
        )
        return Shown(
            metrics={**metrics, self.metric: accuracy}, samples=self._samples(finished, order, len(known)),
            lines=("", line),
        )  # fmt: skip

    def _samples(self, finished: Finished, order: Int[np.ndarray, "Q K"], known: int) -> list[dict[str, Any]]:
        held = finished.opened.held
        labels, names = np.asarray(held.train["label"]), [str(number) for number in range(len(held.train))]
        chosen = stratified_subset(names, labels, known, seed=0)
        count, truth, samples = min(self.count, len(order)), np.asarray(held.labels), []
        shown = replace(held, table=held.train)
        for number in (np.arange(count) * len(order) // count).tolist():
            near = chosen[order[number, :5]]
            query = held.seen(number)
            images = [(query, None), *((shown.seen(int(i)), bool(labels[i] == truth[number])) for i in near)]
            samples.append({
                "picture": save_image(finished.folder.root, f"near{number}", strip(images)),
                "whole": save_image(finished.folder.root, f"query{number}", query),
                "source": f"{held.name(number)}, and the images of training nearest to it",
                "target": held.classes[truth[number]],
                "hypothesis": ", ".join(held.classes[labels[i]] for i in near),
            })  # fmt: skip
        return samples


@frozen
class LinearProbe(FeatureEvaluator):
    """Classify test images by a logistic regression of vectors, for each of some parts of the labels of training.

    `probe_accuracy_10` is that of 10 % of the labels. Every fifth of the images that it is fitted on is kept aside to
    choose the penalty.
    """

    metric: ClassVar[str] = "probe_accuracy"

    labels: tuple[float, ...] = (0.01, 0.1)
    """Parts of the images of training whose labels are used, one classifier each; the last is `probe_accuracy`."""

    def __post_init__(self):
        if not self.labels or not all(0 < part <= 1 for part in self.labels):
            raise ValueError(f"labels must be parts of the images of training, in (0, 1], got {self.labels}")

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        asked, truth = self.asked(finished)
        total, metrics, lines = len(finished.opened.held.train), {}, [""]
        for part in self.labels:
            count = max(round(part * total), 2 * len(finished.opened.held.classes), 5)
            known, classes = self.known(finished, min(count, self.train))
            accuracy = probe(known, asked, classes, truth)[1]
            metrics[f"{self.metric}_{100 * part:g}"] = accuracy
            lines.append(f"linear probe of {len(known):,} labels: {100 * accuracy:.2f} % of {len(truth):,} test images")
        return Shown(metrics={**metrics, self.metric: accuracy}, lines=lines)


@frozen
class EmbeddingRank(FeatureEvaluator):
    """Measure the effective rank of the vectors of held-out images, and say so when they collapse.

    A method that has collapsed gives all images one vector, or vectors along few lines, while its loss looks well.
    """

    metric: ClassVar[str] = "effective_rank"
    validates: ClassVar[bool] = True

    validation: int = 1_000
    """Images at most."""
    least: float = 0.05
    """The part of the width below which vectors are said to collapse."""

    def __post_init__(self):
        if self.validation < 2 or not 0 <= self.least < 1:
            raise ValueError(f"validation must be at least 2, least in [0, 1), got {self.validation} and {self.least}")

    def watch(self, finished: Finished, step: int) -> Mapping[str, float]:
        """Measure the rank of vectors of validation images; print a sentence where they collapse."""
        vectors = self.looked_at(finished, self.validation)[0]
        rank = effective_rank(vectors)
        if sentence := self.collapse(rank, *vectors.shape):
            print(sentence, flush=True)
        return {self.metric: rank}

    def collapse(self, rank: float, count: int, width: int) -> str:
        """Return the sentence that says that vectors collapse; empty where they do not."""
        if rank >= self.least * min(count - 1, width):
            return ""
        return (
            f"the vectors collapse: those of {count:,} held-out images have an effective rank of {rank:.1f}, "
            f"of {width} that their width has room for"
        )

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        vectors = self.asked(finished)[0][: self.validation]
        rank = effective_rank(vectors)
        line = self.collapse(rank, *vectors.shape) or f"effective rank of vectors: {rank:.1f} of {vectors.shape[1]}"
        return Shown(metrics={self.metric: rank}, lines=("", line))


@frozen
class EmbeddingMap(FeatureEvaluator):
    """Draw test images in a plane, near where their vectors are near (t-SNE, van der Maaten & Hinton 2008, by
    scikit-learn), in the colours of their classes."""

    most: int = 1_000
    """Test images at most."""

    def __call__(self, finished: Finished) -> Shown:
        """Draw the map; without scikit-learn say what is missing."""
        try:
            from sklearn.manifold import TSNE
        except ImportError:
            return Shown(lines=("", "no map of the vectors is drawn: it takes scikit-learn (pip install scikit-learn)"))
        vectors, truth = self.asked(finished)
        vectors, truth = vectors[: self.most], truth[: self.most]
        if len(vectors) < 3:
            return Shown()
        # Of few vectors the exact method is the faster one: the other waits for its threads, a thousand times.
        how = {
            "perplexity": min(30.0, (len(vectors) - 1) / 3),
            "method": "exact" if len(vectors) < 200 else "barnes_hut",
        }
        found = TSNE(**how, init="random", random_state=0).fit_transform(unit_rows(vectors))
        held = finished.opened.held
        file = save_image(finished.folder.root, "map", _drawn(found, truth, held.classes), longest=900)
        sample = {
            "picture": file,
            "drawing": True,
            "source": f"{len(vectors):,} test images by their vectors (t-SNE)",
        }
        return Shown(samples=[sample])


def _drawn(points: Float[np.ndarray, "N 2"], truth: Int[np.ndarray, " N"], classes: tuple[str, ...]) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), dpi=100, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    for number, name in enumerate(classes):
        axes.scatter(*points[truth == number].T, s=8, label=name)
    axes.set(xticks=[], yticks=[])
    if len(classes) <= 20:
        figure.legend(loc="outside right upper")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
