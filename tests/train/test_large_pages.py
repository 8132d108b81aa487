"""Large pages: who is told how to have them."""

import pytest

from flax_transformer.train import large_pages
from flax_transformer.train.large_pages import ASK, large_pages_hint

pytestmark = pytest.mark.proves("training", "who could have large pages on a CPU is told how")


@pytest.fixture
def linux(monkeypatch, tmp_path):
    def give(text):
        (tmp_path / "enabled").write_text(text)

    monkeypatch.setattr(large_pages, "WHO_HAS", tmp_path / "enabled")
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    give("always [madvise] never")
    return give


def test_those_who_must_ask_are_told_how(linux):
    assert ASK in large_pages_hint()


@pytest.mark.parametrize("text", ["[always] madvise never", "always madvise [never]"])
def test_nobody_is_told_what_would_change_nothing(linux, text):
    linux(text)
    assert large_pages_hint() is None


def test_who_asks_is_not_told(linux, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", ASK.partition("=")[2])
    assert large_pages_hint() is None


def test_other_systems_and_devices_are_not_told(linux, monkeypatch, tmp_path):
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")
    assert large_pages_hint() is None
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert large_pages_hint() is None
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(large_pages, "WHO_HAS", tmp_path / "none")
    assert large_pages_hint() is None
