"""Text to train SST-2's teacher on: segments of IMDB's reviews, spelled as SST-2's sentences are.

    python benchmarks/review_segments.py IMDB SST2 OUT

`IMDB` holds train.jsonl.xz and test.jsonl.xz, objects of `text` and `label`; `SST2` train.tsv, dev.tsv and test.tsv.
`OUT/segments` gets whole sentences of a review up to 36 words, labelled as the review is, without those that hold a
sentence of SST-2's dev or test of five words or more, or are one. `OUT/joint` gets SST-2's training sentences six
times, and 86,500 segments whose label naive Bayes (words and pairs of words, fitted on the other half) gives by log
odds above 3. Both have SST-2's dev as dev.tsv and as test.tsv.
"""

import argparse
import json
import lzma
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

WORDS, LONGEST = 36, 60
"""Words after which a segment ends with its sentence, and those that are kept of one."""
ODDS, KEPT, TIMES = 3, 86_500, 6


def spelled(text: str) -> str:
    """Return a text in lower case, words and punctuation apart, without hyphens and quotation marks."""
    text = re.sub(r"<br\s*/?>", " ", text).lower()
    text = re.sub(r"n't\b", " n't", text)
    text = re.sub(r"'(s|re|ve|ll|d|m)\b", r" '\1", text)
    text = re.sub(r"[-_*/~\"]", " ", text)
    return " ".join(re.sub(r"([.,!?;:()$%&])", r" \1 ", text).split())


def segments(review: str) -> Iterator[str]:
    """Cut a review into whole sentences of at most so many words together."""
    words: list[str] = []
    for sentence in re.split(r"(?<=[.!?]) (?=[^.!?])", spelled(review)):
        more = sentence.split()
        if words and len(words) + len(more) > WORDS:
            yield " ".join(words[:LONGEST])
            words = []
        words += more
    if len(words) > 3:
        yield " ".join(words[:LONGEST])


def features(text: str) -> set:
    """Return the words of a text and its pairs of words."""
    words = text.split()
    return {*words, *pairwise(words)}


def log_odds(lines: list[tuple[str, int]]) -> dict:
    """Return what each feature that occurs twice says for class 1, by naive Bayes."""
    counts: tuple[Counter, Counter] = (Counter(), Counter())
    for text, label in lines:
        counts[label].update(features(text))
    totals = [sum(each.values()) for each in counts]
    found = (f for f in counts[0].keys() | counts[1].keys() if counts[0][f] + counts[1][f] > 1)
    return {f: math.log((counts[1][f] + 1) / (totals[1] + 1) * (totals[0] + 1) / (counts[0][f] + 1)) for f in found}


def agreed(lines: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the lines whose label naive Bayes gives, fitted on the other half of them."""
    cut, kept = len(lines) // 2, []
    for fitted, rest in ((lines[:cut], lines[cut:]), (lines[cut:], lines[:cut])):
        odds = log_odds(fitted)
        for text, label in rest:
            if len(text.split()) > 4 and sum(odds.get(f, 0) for f in features(text)) * (2 * label - 1) > ODDS:
                kept.append((text, label))
    return kept


def read(path: Path) -> list[tuple[str, int]]:
    """Read lines of a text, a tab and a label."""
    pairs = (line.rsplit("\t", 1) for line in path.read_text().splitlines())
    return [(text, int(label)) for text, label in pairs]


def main() -> None:
    """Write both folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    imdb, sst, out = (parser.add_argument(name, type=Path).dest for name in ("imdb", "sst", "out"))
    given = vars(parser.parse_args())
    held = [text for split in ("test", "dev") for text, _ in read(given[sst] / f"{split}.tsv")]
    lines = []
    for split in ("train", "test"):
        with lzma.open(given[imdb] / f"{split}.jsonl.xz", "rt", encoding="utf-8") as file:
            for review in map(json.loads, file):
                lines += [(text, int(review["label"] in (1, "1", "pos"))) for text in segments(review["text"])]
    random.Random(0).shuffle(lines)
    whole = "\n".join(text for text, _ in lines)
    quoted = [text for text in held if len(text.split()) > 4 and text in whole]
    lines = [(text, label) for text, label in lines if text not in set(held) and not any(q in text for q in quoted)]
    clean = agreed(lines)
    random.Random(1).shuffle(clean)
    joint = read(given[sst] / "train.tsv") * TIMES + clean[:KEPT]
    random.Random(2).shuffle(joint)
    for name, rows in (("segments", lines), ("joint", joint)):
        folder = given[out] / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
        for split in ("dev", "test"):
            (folder / f"{split}.tsv").write_bytes((given[sst] / "dev.tsv").read_bytes())
        print(f"{folder}: {len(rows):,} lines")


if __name__ == "__main__":
    main()
