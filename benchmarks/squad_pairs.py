"""Pairs to train a retriever and a ranker with, of questions in SQuAD's form: hard negatives are found by words (BM25).

    python benchmarks/squad_pairs.py SQUAD runs/pairs --negatives 1

SQUAD is a folder with train.json and dev.json, or .json.gz. Of every question the negative is the passage that has most
of its words, and is neither its own nor has one of its answers (Karpukhin et al. 2020). Written are, for two towers,
`towers/{train,dev,test}.jsonl`, lines of `anchor`, `positive` and `negative`, pieces of passages as an index has them,
and for a cross-encoder `ranker/{train,dev,test}.tsv`, question, passage and 1 or 0 a line. Of the training passages 3 %
are for `dev` of both.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flax_transformer.data.text.annotated import Question
from flax_transformer.data.text.document import split_sentences
from flax_transformer.data.text.squad import SquadData
from flax_transformer.task.lexical import Lexical

AMONG = 10
"""Passages with most words of a question among which its negatives are drawn."""


def mined(questions: Sequence[Question], count: int) -> list[list[str]]:
    """Find passages for each question that have its words, and not its answer."""
    contexts = list(dict.fromkeys(each.context for each in questions))
    lexical, draw, found = Lexical(contexts), np.random.default_rng(0), []
    for each in questions:
        order = np.argsort(-lexical.scores(each.question), kind="stable")[: 5 * AMONG]
        wrong = [contexts[n] for n in order if contexts[n] != each.context
                 and not any(answer in contexts[n] for answer in each.answers)][:AMONG]  # fmt: skip
        found.append([wrong[n] for n in draw.permutation(len(wrong))[:count]])
    return found


def pieces(text: str, most: int) -> list[tuple[int, str]]:
    """Cut a passage into runs of sentences of so many characters, longer sentences by themselves; with their starts."""
    found, at = [], 0
    for sentence in split_sentences(text):
        at = text.index(sentence, at)
        for first in range(at, at + len(sentence), most):
            part = text[first : min(first + most, at + len(sentence))]
            if found and first + len(part) - found[-1][0] <= most:
                found[-1] = (found[-1][0], text[found[-1][0] : first + len(part)])
            else:
                found.append((first, part))
        at += len(sentence)
    return found


def piece_with(question: Question, context: str, most: int) -> str:
    """Return the piece of a passage that has the answer, or else most pairs of letters of the question."""
    cut = pieces(context, most)
    if context == question.context and question.starts:
        return [text for start, text in cut if start <= max(question.starts[0], cut[0][0])][-1]
    pairs = {a + b for a, b in itertools.pairwise(question.question)}
    return max((text for _, text in cut), key=lambda text: sum(pair in text for pair in pairs))


def one_line(text: str) -> str:
    """Leave no tab and no end of a line."""
    return " ".join(text.split())


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad")
    parser.add_argument("output", type=Path)
    parser.add_argument("--negatives", type=int, default=1, help="of each question, for the ranker; one for two towers")
    parser.add_argument("--piece", type=int, default=160, help="most characters of a passage for the two towers")
    options = parser.parse_args()
    data = SquadData(root=options.squad, holdout=0.03)
    for folder in ("towers", "ranker"):
        (options.output / folder).mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        questions = data.read(split)
        negatives = mined(questions, options.negatives)
        rows, pairs = [], []
        for each, wrong in zip(questions, negatives, strict=True):
            question, context = one_line(each.question), one_line(each.context)
            rows += [f"{question}\t{context}\t1\n", *(f"{question}\t{one_line(text)}\t0\n" for text in wrong)]
            near, far = (piece_with(each, text, options.piece) for text in (each.context, (wrong or [each.context])[0]))
            pair = {"anchor": question, "positive": one_line(near), "negative": one_line(far)}
            pairs.append(json.dumps(pair, ensure_ascii=False) + "\n")
        (options.output / "ranker" / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
        (options.output / "towers" / f"{name}.jsonl").write_text("".join(pairs), encoding="utf-8")
        print(f"{name}: {len(questions):,} questions, {len(rows):,} pairs")


if __name__ == "__main__":
    main()
