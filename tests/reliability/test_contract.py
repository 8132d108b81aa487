"""What needs no process of its own: refused settings, losses that are no numbers, bytes that changed."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
from harness import arrays, copied, losses, records, saved

from flax_transformer.data.synthetic import Numbers
from flax_transformer.task.evaluator import Shown
from flax_transformer.task.experiment import train
from flax_transformer.task.sentence_pair import BPE
from flax_transformer.task.translation import Translations
from flax_transformer.train.checkpoint import CheckpointError
from flax_transformer.train.folder import FolderError
from flax_transformer.train.loop import NotFinite
from flax_transformer.train.preemption import Preempted
from tests.recipe import tiny_translation

pytestmark = pytest.mark.proves("checkpoints of runs", "resumed runs are the uninterrupted ones, bit for bit")

BASE = tiny.EXPERIMENT


def changed(**options):
    return replace(BASE, train=replace(BASE.train, **options))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run of ten steps."""
    folder = tmp_path_factory.mktemp("done") / "run"
    train(changed(steps=10), folder)
    return folder


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (changed(seed=1), "train.seed: 0 → 1"),
        (replace(BASE, data="cosine"), "data: sine → cosine"),
        (replace(BASE, rows=32), "rows: 16 → 32"),
    ],
)
def test_changed_settings_are_refused_with_the_difference(done, other, message):
    before = arrays(done, 10)
    with pytest.raises(FolderError, match=message):
        train(other, done)
    assert arrays(done, 10) == before


@pytest.mark.rotates
def test_lengths_and_limits_may_change(done, tmp_path):
    folder = copied(done, tmp_path / "run")
    train(changed(steps=12, stall=60.0, skip_not_finite=2, log_every=3, keep=1), folder)
    assert saved(folder) == [12]


@pytest.mark.rotates
def test_a_loss_that_is_no_number_ends_the_run_and_spares_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("FAULT", "nan:0:8")
    with pytest.raises(NotFinite, match="at step 8; the last good checkpoint is step 5"):
        train(BASE, tmp_path)
    assert saved(tmp_path) == [5]
    monkeypatch.delenv("FAULT")
    train(BASE, tmp_path)
    assert saved(tmp_path)[-1] == 20


@pytest.mark.rotates
def test_a_batch_may_be_skipped_as_if_it_had_not_been(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAULT", "nan:0:8")
    train(changed(skip_not_finite=1), tmp_path)
    assert "step 8: 1 batches skipped so far, of 1 at most" in capsys.readouterr().out
    steps = [record["step"] for record in records(tmp_path) if record["split"] == "train"]
    assert steps == [step for step in range(1, 21) if step != 8]
    assert np.isfinite(losses(tmp_path)).all()
    assert {record.get("skipped") for record in records(tmp_path) if record["split"] == "train"} == {None, 1.0}


@pytest.mark.rotates
def test_skipped_batches_are_counted_over_a_restart(tmp_path, monkeypatch):
    monkeypatch.setenv("FAULT", "nan:0:8")
    train(changed(skip_not_finite=1, steps=10), tmp_path)
    monkeypatch.setenv("FAULT", "nan:0:15")
    with pytest.raises(NotFinite, match="at step 15, after 1 skipped batches; the last good checkpoint is step 10"):
        train(changed(skip_not_finite=1), tmp_path)
    train(changed(skip_not_finite=2), tmp_path)


@pytest.mark.rotates
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damaged_bytes_are_told_and_the_last_good_step_is_used_only_when_asked_for(done, tmp_path, damage):
    folder = copied(done, tmp_path / "run")
    newest = folder / "checkpoints" / "10"
    path = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data if damage == "flip" else data[:-7])
    with pytest.raises(
        CheckpointError, match=rf"checkpoint 10 is damaged: {path} has changed; step 5 is the last good"
    ):
        train(changed(steps=10), folder)
    assert 10 in saved(folder)
    for old in sorted(newest.rglob("*"), reverse=True):
        old.unlink() if old.is_file() else old.rmdir()
    newest.rmdir()
    train(changed(steps=10), folder)
    assert arrays(folder, 10) == arrays(done, 10)


@pytest.mark.rotates
def test_a_checkpoint_whose_writer_was_killed_before_its_manifest_is_sealed_when_it_is_read(done, tmp_path):
    folder = copied(done, tmp_path / "run")
    (folder / "checkpoints" / "10.sha256.json").unlink()
    train(changed(steps=10), folder)
    assert (folder / "checkpoints" / "10.sha256.json").read_text() == (
        done / "checkpoints" / "10.sha256.json"
    ).read_text()


@pytest.mark.rotates
def test_an_old_checkpoint_that_was_being_deleted_does_no_harm(done, tmp_path):
    for number, pattern in enumerate(("state", "*METADATA*", "*")):
        folder = copied(done, tmp_path / f"run{number}")
        for path in list((folder / "checkpoints" / "5").glob(pattern)):
            for inner in sorted(path.rglob("*"), reverse=True):
                inner.unlink() if inner.is_file() else inner.rmdir()
            path.rmdir() if path.is_dir() else path.unlink()
        train(changed(steps=12), folder)
        assert saved(folder)[-1] == 12


@pytest.mark.rotates
def test_preemption_in_the_middle_of_a_step_saves_after_it(done, tmp_path, monkeypatch):
    monkeypatch.setenv("FAULT", "terminate:0:7")
    with pytest.raises(Preempted, match="preempted at step 7") as caught:
        train(changed(steps=10), tmp_path)
    assert caught.value.code == 0
    monkeypatch.delenv("FAULT")
    train(changed(steps=10), tmp_path)
    assert arrays(tmp_path, 10) == arrays(done, 10)


def translator(steps):
    """A translator too small to learn anything."""
    return tiny_translation(steps=steps, log_every=1, eval_every=2, checkpoint_every=2)


@pytest.mark.slow
def test_another_tokenizer_or_other_files_are_refused(tmp_path, monkeypatch):
    """Files whose contents change while the settings stay are seen by their fingerprint."""
    monkeypatch.setattr(Translations, "__call__", lambda *_: Shown())
    train(translator(2), tmp_path)
    written = (tmp_path / "tokenizer.json").read_text()
    BPE(merges=9).train([{"source": "one two", "target": "eins zwei"}]).save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"tokenizer: saved '[0-9a-f]{64}', now '[0-9a-f]{64}'"):
        train(translator(4), tmp_path)
    (tmp_path / "tokenizer.json").write_text(written)
    with monkeypatch.context() as patch:
        patch.setattr(Numbers, "read", lambda self, split: [{"source": "one", "target": "eins"}] * 40)
        with pytest.raises(ValueError, match=r"data: saved '[0-9a-f]{64}', now '[0-9a-f]{64}'"):
            train(translator(4), tmp_path)
    train(translator(4), tmp_path)
    assert saved(tmp_path)[-1] == 4
