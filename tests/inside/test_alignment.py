"""The cross-attention of the number translator aligns words as they really are."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flax_transformer.data.synthetic.number_words import english, german
from flax_transformer.hub import load
from flax_transformer.task.explore.case import make_case
from flax_transformer.task.explore.program import Program, Switches, look

pytestmark = [pytest.mark.slow, pytest.mark.proves("inside", "the number translator's alignment")]
ROOT = Path(__file__).parent.parent.parent
UNITS = {"thousand": "tausend", "hundred": "hundert"}


def parts(words):
    """Return the German word of a number as pieces, each with which of the English words it says; "und" says none."""
    for unit in UNITS:
        if unit in words:
            at = words.index(unit)
            return [*parts(words[:at]), (UNITS[unit], at), *[(text, i + at + 1) for text, i in parts(words[at + 1 :])]]
    said = {english(i): german(i).removesuffix("s" if i == 1 else "") for i in (*range(20), *range(20, 100, 10))}
    if len(words) == 2:  # tens and ones, in German the other way round
        return [(said[words[1]], 1), ("und", -(10**6)), (said[words[0]], 0)]
    return [(said[words[0]], 0)] if words else []


def spans(tokens, text):
    """Return the characters [start, end) of each token of a text without its spaces."""
    found, at = [], 0
    for token in tokens:
        piece = token.removeprefix("·")
        found.append((at, at + len(piece)) if text.startswith(piece, at) else None)
        at += len(piece) if found[-1] else 0
    return found


def true_alignment(n, source, target):
    """Return for each target token the source tokens that say the same; none where none does."""
    words = english(n).replace("-", " ").split()
    plain, whole = english(n).replace(" ", ""), german(n)
    starts, at = [], 0
    for word in words:
        at = plain.index(word, at)
        starts.append((at, at + len(word)))
        at += len(word)
    pieces, at = [], 0
    for text, word in parts(words):
        pieces.append((at, at + len(text), word))
        at += len(text)
    read, found = spans(source, plain), []
    for span in spans(target, whole):
        said = [w for start, end, w in pieces if span and w >= 0 and start < span[1] and span[0] < end]
        chars = [starts[w] for w in said]
        found.append({i for i, own in enumerate(read) if own and any(own[0] < e and s < own[1] for s, e in chars)})
    return found


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    command = [sys.executable, "experiments/translate_numbers.py", "--workdir", folder]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return load(folder / "export")


def test_the_pieces_are_the_german_word():
    for n in (1, 21, 101, 321, 45_678, 987_654):
        spelt = "".join(text for text, _ in parts(english(n).replace("-", " ").split()))
        assert german(n) in (spelt, spelt + "s")


def aligned(program, numbers):
    """Return for each layer and head how often its largest weight is on a true source token."""
    right, count = 0, 0
    for n in numbers:
        case = make_case(program.pretrained, english(n))
        given = program.given(case.inputs)
        weights = program.run(look, given, program.edits(given, Switches()))[1]["attention_weights"][-1][:, 0]
        target = case.target[1:]
        best = weights[:, :, : len(target), : len(case.source)].argmax(-1)
        for t, truth in enumerate(true_alignment(n, case.source, target)):
            if truth:
                right = right + np.isin(best[:, :, t], [*truth])
                count += 1
    return right / count


def test_one_head_aligns_what_it_was_not_chosen_by(translator):
    rng, program = np.random.default_rng(0), Program(translator)
    numbers = rng.integers(100, 1_000_000, 160)
    chosen, held = aligned(program, numbers[:80]), aligned(program, numbers[80:])
    layer, head = np.unravel_index(chosen.argmax(), chosen.shape)
    print("layer, head", layer, head, "accuracy", held[layer, head], "of all heads", held.round(3).tolist())
    assert held[layer, head] >= 0.9
