"""Pairs to train a retriever and a ranker with, of questions in SQuAD's form: hard negatives are found by words (BM25).

    python benchmarks/squad_pairs.py SQUAD runs/pairs --negatives 1

SQUAD is a folder with train.json and dev.json, or .json.gz. Of every question the negative is the passage that has most
of its words, and is neither its own nor has one of its answers (Karpukhin et al. 2020). Written are, for two towers,
`towers/{train,dev}.jsonl`, lines of `anchor`, `positive` and `negative`, and for a cross-encoder
`ranker/{train,dev,test}.tsv`, question, passage and 1 or 0 a line. Of the training passages 3 % are for `dev` of both.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flax_transformer.data.text.annotated import Question
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


def one_line(text: str) -> str:
    """Leave no tab and no end of a line."""
    return " ".join(text.split())


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad")
    parser.add_argument("output", type=Path)
    parser.add_argument("--negatives", type=int, default=1, help="of each question, for the ranker; one for two towers")
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
            pair = {"anchor": question, "positive": context, "negative": one_line(wrong[0]) if wrong else context}
            pairs.append(json.dumps(pair, ensure_ascii=False) + "\n")
        (options.output / "ranker" / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
        (options.output / "towers" / f"{name}.jsonl").write_text("".join(pairs), encoding="utf-8")
        print(f"{name}: {len(questions):,} questions, {len(rows):,} pairs")


if __name__ == "__main__":
    main()
