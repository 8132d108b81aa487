"""Entities of labelled words, as conlleval counts them."""

import random

import pytest

from flax_transformer.metric.entity import entities, entity_scores, is_entity_scheme

pytestmark = pytest.mark.proves("token classification", "precision, recall and F1 of entities, as seqeval")

MARKS = [f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC")] + ["O", "O"]


def sentences(seed):
    draw = random.Random(seed)
    return [draw.choices(MARKS, k=draw.randint(1, 12)) for _ in range(40)]


def test_entities_of_a_well_formed_sentence_are_those_it_was_made_of():
    made = [("PER", 0, 1), ("LOC", 3, 5), ("LOC", 6, 6)]
    labels = ["O"] * 8
    for kind, begin, end in made:
        labels[begin : end + 1] = [f"B-{kind}", *[f"I-{kind}"] * (end - begin)]
    assert list(entities(labels)) == made
    assert entity_scores([labels], [labels])["f1"] == 100
    assert entity_scores([["O"] * 8], [labels]) == {"precision": 0, "recall": 0, "f1": 0}


def test_what_cannot_be_counted_is_refused():
    assert not is_entity_scheme(["B", "O"])
    with pytest.raises(ValueError, match="must be as many"):
        entity_scores([["O"]], [["O", "O"]])


@pytest.mark.parity
def test_entities_are_those_of_seqeval():
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    for seed in range(20):
        for labels in sentences(seed):
            assert list(entities(labels)) == labeling.get_entities(labels)
        predicted, truth = sentences(seed), [labels[::-1] for labels in sentences(seed)]
        ours = entity_scores(predicted, truth)
        for name in ("precision", "recall", "f1"):
            assert ours[name] == pytest.approx(100 * getattr(labeling, f"{name}_score")(truth, predicted))
