"""What is sent."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from flax_transformer.launch import pack
from flax_transformer.launch.gke import PART, PARTS

ROOT = Path(__file__).parent.parent.parent


def names(package):
    with tarfile.open(fileobj=io.BytesIO(package.content)) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def git(folder, *arguments):
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A checkout of the library in small, with things that must not be sent."""
    root = tmp_path / "checkout"
    files = {
        "pyproject.toml": "name = 'flax-transformer'", "README.md": "read", "LICENSE": "free",
        ".gitignore": "runs/\n*.secret\n",
        "flax_transformer/__init__.py": "", "flax_transformer/data/text/plain.py": "code",
        "flax_transformer/report/page.css": "",
        "experiments/exp.py": "print(1)", "experiments/part.py": "x = 1", "experiments/runs/log.py": "",
        "experiments/data/corpus.txt": "text", "experiments/note.secret": "", "tests/test_a.py": "", "runs/a/b.py": "",
    }  # fmt: skip
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    git(root.parent, "init", "-q", str(root))
    git(root, "add", "flax_transformer", "pyproject.toml")
    git(root, "commit", "-qm", "begin")
    return root


def test_a_checkout_sends_the_library_and_the_code_beside_the_experiment(checkout):
    package = pack(checkout / "experiments/exp.py", library=checkout)
    assert sorted(names(package)) == [
        "LICENSE", "README.md", "experiments/exp.py", "experiments/part.py", "flax_transformer/__init__.py",
        "flax_transformer/data/text/plain.py", "flax_transformer/report/page.css", "pyproject.toml",
    ]  # fmt: skip
    assert (package.experiment, package.requirement) == ("experiments/exp.py", ".[tpu]")
    assert package.files == 8


def test_the_same_files_give_the_same_bytes(checkout):
    first = pack(checkout / "experiments/exp.py", library=checkout)
    for path in checkout.rglob("*.py"):
        path.touch()
    again = pack(checkout / "experiments/exp.py", library=checkout)
    assert first == again
    (checkout / "experiments/part.py").write_text("x = 2")
    assert pack(checkout / "experiments/exp.py", library=checkout).digest != first.digest


def test_an_installed_library_is_named_by_its_version(checkout, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "pyproject.toml").write_text("name = 'of another package that left it there'")
    package = pack(checkout / "experiments/exp.py", library=tmp_path / "site")
    assert package.requirement.startswith("flax-transformer[tpu]==")
    assert sorted(names(package)) == ["experiment/exp.py", "experiment/part.py"]
    assert package.experiment == "experiment/exp.py"


def test_a_checkout_that_git_does_not_list_is_not_replaced_by_a_release(checkout):
    shutil.rmtree(checkout / ".git")
    with pytest.raises(ValueError, match=r"git must list the library's files in .*checkout, to send them"):
        pack(checkout / "experiments/exp.py", library=checkout)


def test_outside_of_git_the_experiment_goes_alone(tmp_path, checkout):
    (tmp_path / "alone").mkdir()
    for name in ("exp.py", "other.py"):
        (tmp_path / "alone" / name).write_text("1")
    package = pack(tmp_path / "alone/exp.py", library=checkout)
    assert [name for name in names(package) if name.startswith("experiment/")] == ["experiment/exp.py"]
    assert package.requirement == ".[tpu]"


def test_links_are_not_followed(checkout, tmp_path):
    (tmp_path / "private.py").write_text("password")
    (checkout / "experiments/link.py").symlink_to(tmp_path / "private.py")
    assert not any(
        b"password" in content for content in names(pack(checkout / "experiments/exp.py", checkout)).values()
    )


@pytest.mark.rotates
def test_this_checkout_fits_into_config_maps():
    package = pack(ROOT / "experiments/wmt14.py")
    files = names(package)
    assert files["experiments/wmt14.py"] == (ROOT / "experiments/wmt14.py").read_bytes()
    assert "flax_transformer/launch/worker.sh" in files
    assert not any(name.startswith(("runs/", "tests/", ".git")) for name in files)
    assert len(package.content) < len(PARTS) * PART / 2  # which leaves room for files of one's own


def test_what_is_no_experiment_is_refused(tmp_path):
    with pytest.raises(ValueError, match="an experiment must be a Python file, there is none at"):
        pack(tmp_path / "none.py")
    with pytest.raises(ValueError, match="an experiment must be a Python file"):
        pack(ROOT / "README.md")


def test_much_more_than_code_is_refused(checkout, monkeypatch):
    monkeypatch.setattr("flax_transformer.launch.package.LIMIT", 100)
    with pytest.raises(ValueError, match="the code to send must be at most 100 bytes, got"):
        pack(checkout / "experiments/exp.py", library=checkout)
