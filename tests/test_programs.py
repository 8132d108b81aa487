"""Compiled programs that commands keep: where, for whom, and when not."""

import os

import jax
import pytest

from flax_transformer.cli.programs import FOLDER, keep_programs


@pytest.fixture
def told(monkeypatch, tmp_path):
    """Collect what JAX is told, without telling it; there is a home, and no other wish."""
    asked = {}
    monkeypatch.setattr(type(jax.config), "update", lambda self, name, value: asked.update({name: value}))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (FOLDER, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None, raising=False)
    return asked


def test_programs_are_kept_by_convention_for_the_user_alone_and_in_bounds(told, tmp_path):
    keep_programs()
    folder = told["jax_compilation_cache_dir"]
    assert folder.startswith(str(tmp_path))
    assert "flax_transformer" in folder
    assert os.stat(folder).st_mode & 0o077 == 0
    assert told["jax_compilation_cache_max_size"] > 0


def test_a_variable_names_the_folder_or_none(told, monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER, str(tmp_path / "mine"))
    keep_programs()
    assert told.pop("jax_compilation_cache_dir").startswith(str(tmp_path / "mine"))
    told.clear()
    monkeypatch.setenv(FOLDER, "")
    keep_programs()
    assert not told


def test_without_a_place_to_write_nothing_is_kept(told, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "below"))
    keep_programs()
    assert not told
    monkeypatch.setenv(FOLDER, str(tmp_path / "closed"))
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: (_ for _ in ()).throw(PermissionError()))
    keep_programs()
    assert not told


def test_without_a_home_nothing_is_kept(told, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", homeless)
    keep_programs()
    assert not told


def test_a_folder_of_somebody_else_is_not_used(told, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
    keep_programs()
    assert not told
