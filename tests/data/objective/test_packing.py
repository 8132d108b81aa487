import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.text import Blocks, Packed, TokenWindows
from flax_transformer.data.text.batch import ragged

DOCUMENTS = st.lists(st.lists(st.integers(3, 50), max_size=12), max_size=8)


@settings(max_examples=60)
@given(DOCUMENTS, st.integers(1, 9))
def test_packing_keeps_every_token_in_order_and_pads_only_the_end(documents, length):
    rows = list(Packed(documents=ragged(documents), length=length, pad=99))
    total = sum(map(len, documents))
    assert len(rows) == -(-total // length)
    real = np.concatenate([row["segments"] > 0 for row in rows]) if rows else np.empty(0, bool)
    assert real[:total].all()
    assert not real[total:].any()
    tokens = np.concatenate([row["tokens"] for row in rows]) if rows else np.empty(0, int)
    assert tokens[:total].tolist() == [token for document in documents for token in document]
    assert (tokens[total:] == 99).all()


@settings(max_examples=60)
@given(DOCUMENTS, st.integers(1, 9))
def test_a_segment_is_one_stretch_of_one_document(documents, length):
    """Every label is the token behind in its own document; all but first tokens are labels, once."""
    owner = [(number, place) for number, document in enumerate(documents) for place in range(len(document))]
    seen = []
    for index, row in enumerate(Packed(documents=ragged(documents), length=length)):
        here = owner[index * length : (index + 1) * length]
        segments, positions = row["segments"][: len(here)], row["positions"][: len(here)]
        for k, (number, place) in enumerate(here):
            same = [other for other in range(len(here)) if segments[other] == segments[k]]
            assert {here[other][0] for other in same} == {number}
            assert positions[k] == k - same[0]
            assert row["weights"][k] == (place + 1 < len(documents[number]))
            if row["weights"][k]:
                assert row["labels"][k] == documents[number][place + 1]
                seen.append((number, place + 1))
        assert sorted(set(segments)) == list(range(1, len(set(segments)) + 1))
        assert not row["weights"][len(here) :].any()
    assert seen == [(number, place) for number, place in owner if place]


def test_a_row_by_hand():
    row = Packed(documents=ragged([[5, 6, 7], [], [8], [9, 4, 3]]), length=6)[0]
    assert row["tokens"].tolist() == [5, 6, 7, 8, 9, 4]
    assert row["segments"].tolist() == [1, 1, 1, 2, 3, 3]
    assert row["positions"].tolist() == [0, 1, 2, 0, 0, 1]
    assert row["labels"].tolist() == [6, 7, 0, 0, 4, 3]
    assert row["weights"].tolist() == [1, 1, 0, 0, 1, 1]


@settings(max_examples=60)
@given(st.integers(2, 40), st.integers(1, 8), st.integers(1, 8))
def test_windows_cover_the_stream_and_predict_its_next_token(n, length, stride):
    stream = np.arange(100, 100 + n, dtype=np.uint16)
    if n <= length:
        with pytest.raises(ValueError, match=f"must be longer than a window, got {n} tokens, length {length}"):
            TokenWindows(tokens=stream, length=length)
        return
    windows = TokenWindows(tokens=stream, length=length, stride=stride)
    seen = []
    for index, window in enumerate(windows):
        first = 100 + min(index * stride, n - 1 - length)
        assert window["tokens"].tolist() == list(range(first, first + length))
        assert window["labels"].tolist() == [token + 1 for token in window["tokens"]]
        seen += window["labels"][window["weights"] > 0].tolist()
    # Each label as often as windows at every multiple of the stride have it, the last one as far as the stream goes.
    begins = range(0, n - 1, stride)
    ends = next((k for k, begin in enumerate(begins) if begin + length >= n - 1), len(begins) - 1)
    expected = [101 + at for begin in begins[: ends + 1] for at in range(begin, min(begin + length, n - 1))]
    assert sorted(seen) == sorted(expected)
    assert len(windows) == ends + 1
    if stride == length:
        assert seen == list(range(101, 100 + n))


@settings(max_examples=100)
@given(DOCUMENTS, st.integers(1, 7), st.data())
def test_blocks_keep_every_token_of_long_pieces_and_never_mix_documents(documents, room, data):
    least = data.draw(st.integers(1, room))
    blocks = Blocks(documents=ragged(documents), length=room + 2, begin=(1,), end=(2,), least=least)
    pieces = [document[at : at + room] for document in documents for at in range(0, len(document), room)]
    expected = [[1, *piece, 2] for piece in pieces if len(piece) >= least]
    assert [block["tokens"].tolist() for block in blocks] == expected


def test_impossible_lengths_are_refused():
    documents = ragged([[1, 2]])
    with pytest.raises(ValueError, match="length must be at least 1 position, got 0"):
        Packed(documents=documents, length=0)
    with pytest.raises(ValueError, match="length must exceed the marks, got 2 and 2"):
        Blocks(documents=documents, length=2, begin=(1,), end=(2,))
    with pytest.raises(ValueError, match=r"least must be in 1\.\.4 tokens, got 5"):
        Blocks(documents=documents, length=4, least=5)
    with pytest.raises(ValueError, match="length and stride must be at least 1, got 4, 0"):
        TokenWindows(tokens=documents.flat, length=4, stride=0)


def test_fingerprints_tell_data_and_options_apart():
    one, other = ragged([[5, 6], [7]]), ragged([[5], [6, 7]])
    values = [Packed(documents=d, length=n).fingerprint for d in (one, other) for n in (2, 3)]
    values += [Blocks(documents=d, length=n).fingerprint for d in (one, other) for n in (2, 3)]
    values += [TokenWindows(tokens=one.flat, length=n).fingerprint for n in (1, 2)]
    assert len(set(values)) == len(values)
    assert Packed(documents=ragged([[5, 6], [7]]), length=2).fingerprint == values[0]
