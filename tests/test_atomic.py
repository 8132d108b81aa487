"""Files appear whole or not at all, in the place of what is there."""

import pytest

from flax_transformer.atomic import write_file


def test_text_and_bytes_are_written_as_they_are(tmp_path):
    assert write_file(tmp_path / "a", "é\n").read_bytes() == b"\xc3\xa9\n"
    assert write_file(tmp_path / "a", b"\xff").read_bytes() == b"\xff"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_text("mine")
    path.symlink_to(other)
    write_file(path, "new")
    assert (other.read_text(), path.read_text(), path.is_symlink()) == ("mine", "new", False)


def test_what_was_there_stays_where_writing_fails(tmp_path):
    path = write_file(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_file(path, "\ud800")
    assert path.read_text() == "old"
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "missing" / "file", "new")
