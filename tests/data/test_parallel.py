import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.data.text import PairSource, ParallelText, parallel_files, read_parallel


@pytest.fixture
def write(tmp_path):
    def write(**files: bytes | str):
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            (tmp_path / f"train.{name}").write_bytes(data)
        return tmp_path / "train.en", tmp_path / "train.de"

    return write


def test_pairs_are_read_line_by_line(write):
    pairs = read_parallel(*write(en="one\ntwo\n", de="eins\nzwei\n"))
    assert isinstance(pairs, PairSource)
    assert [pairs[i] for i in range(len(pairs))] == [
        {"source": "one", "target": "eins"},
        {"source": "two", "target": "zwei"},
    ]
    assert pairs.skipped == {}


@pytest.mark.parametrize(
    "english",
    [b"one\ntwo", b"one\r\ntwo\r\n", b"\xef\xbb\xbfone\ntwo\n", b"one\ntwo\n"],
    ids=["no last newline", "CRLF", "byte order mark", "plain"],
)
def test_line_endings_and_marks_do_not_reach_the_text(write, english):
    assert read_parallel(*write(en=english, de="eins\nzwei\n"))["source"] == ["one", "two"]


@pytest.mark.rotates
@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)), min_size=1), min_size=1))
def test_only_newline_ends_a_line(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("text")
    lines = ["a\u2028b\u0085c\x0bd\x1ce", *(f"x{line}" for line in lines)]
    for language in ("en", "de"):
        (folder / f"t.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    assert read_parallel(folder / "t.en", folder / "t.de", max_length=10_000)["source"] == lines


def test_gzipped_files_read_alike(write, tmp_path):
    write(de="eins\n")
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"one\n"))
    files = parallel_files(tmp_path, "train", "en", "de")
    assert files == (tmp_path / "train.en.gz", tmp_path / "train.de")
    assert read_parallel(*files)[0] == {"source": "one", "target": "eins"}


def test_a_truncated_gzip_file_is_named(write, tmp_path):
    write(de="eins\n")
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"one two three\n" * 100)[:30])
    with pytest.raises(ValueError, match=r"train\.en\.gz is not a whole gzip file"):
        read_parallel(tmp_path / "train.en.gz", tmp_path / "train.de")


def test_unusable_pairs_are_skipped_and_counted(write):
    files = write(en="one\n\nthree\n  \nfive\n" + "x" * 21 + "\n", de="eins\nzwei\n\n\nfünf\nsechs\n")
    pairs = read_parallel(*files, max_length=20)
    assert pairs["source"] == ["one", "five"]
    assert pairs["target"] == ["eins", "fünf"]
    assert pairs.skipped == {"empty": 3, "too long": 1}


@pytest.mark.parametrize(
    ("english", "german", "message"),
    [
        ("one\n\n", "eins\nzwei\n", "train.en, line 2: empty"),
        ("one\ntwo\n", "eins\n \n", "train.de, line 2: empty"),
        ("one\ntwo\n", "eins\n" + "z" * 9 + "\n", "train.de, line 2: too long, 9 characters where 8 are allowed"),
    ],
)
def test_strict_names_file_and_line(write, english, german, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_parallel(*write(en=english, de=german), max_length=8, strict=True)


def test_length_limit_counts_characters_inclusively(write):
    assert len(read_parallel(*write(en="ü" * 8, de="eins"), max_length=8, strict=True)) == 1


def test_unequal_files_name_both_counts_and_both_files(write):
    source, target = write(en="one\ntwo\nthree\n", de="eins\nzwei\n")
    with pytest.raises(ValueError, match=re.escape(f"got 3 in {source}, 2 in {target}")):
        read_parallel(source, target)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"], ids=["nothing", "only a mark"])
def test_an_empty_file_is_named(write, content):
    with pytest.raises(ValueError, match=r"train\.de is empty"):
        read_parallel(*write(en="one\n", de=content))


def test_files_without_a_usable_pair_say_why(write):
    with pytest.raises(ValueError, match=r"no usable pair in .*: 2 empty"):
        read_parallel(*write(en="\n\n", de="eins\nzwei\n"))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_line_that_is_not_utf8_is_named(write, mark):
    with pytest.raises(ValueError, match=r"train\.de, line 3: not UTF-8"):
        read_parallel(*write(en="a\nb\nc\n", de=mark + "eins\nzwölf\n".encode() + b"dr\xe4i\n"))


def test_a_missing_file_is_named_with_its_nearest_neighbours(write, tmp_path):
    write(en="one\n")
    with pytest.raises(FileNotFoundError, match=r"no file .*train\.de"):
        read_parallel(tmp_path / "train.en", tmp_path / "train.de")
    with pytest.raises(FileNotFoundError, match=r"no file trian\.en in .*; nearest names there: train\.en"):
        parallel_files(tmp_path, "trian", "en", "de")
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        parallel_files(tmp_path / "nowhere", "train", "en", "de")


def test_splits_follow_the_configured_names(tmp_path):
    for name, text in {"train.tok.en": "a", "train.tok.de": "b", "val.en": "c", "val.de": "d"}.items():
        (tmp_path / name).write_text(text)
    config = ParallelText(root=str(tmp_path), train="train.tok")
    assert config.read("train")[0] == {"source": "a", "target": "b"}
    assert config.read("validation")[0] == {"source": "c", "target": "d"}
    with pytest.raises(FileNotFoundError, match=r"test_2016_flickr\.en"):
        config.read("test")
    with pytest.raises(ValueError, match="train, validation, test, got 'dev'"):
        config.read("dev")


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="two languages, got 'de' twice"):
        ParallelText(root=".", source="de")
    with pytest.raises(ValueError, match="at least 1 character, got 0"):
        ParallelText(root=".", max_length=0)
