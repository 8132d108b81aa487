"""Model cards of runs, and what would be sent to the hub: read back by the hub's own library."""

import json

import jax
import pytest
from huggingface_hub import ModelCard

from flax_transformer import hub
from flax_transformer.hub.registration import USES
from flax_transformer.hub.registry import families
from flax_transformer.task import push as pushing
from flax_transformer.task.model_card import CARD, OF_HUB, library_of, license_card, pipeline_tag, write_card
from flax_transformer.task.push import check_repository, plan_push, push
from flax_transformer.train.folder import RunFolder
from tests.hub.test_golden import GOLDEN

pytestmark = pytest.mark.proves("model cards", "as the hub's library reads them; what is sent, and what is refused")
BY_NAME = {folder.name: folder for folder in GOLDEN}


@pytest.fixture(scope="module")
def classifier():
    return hub.load(BY_NAME["vit"])


@pytest.fixture
def run_folder(tmp_path, classifier):
    """A finished run."""
    root = tmp_path / "flowers"
    hub.save(classifier, root / "export")
    (root / "checkpoints").mkdir()
    config = {
        "type": "a:Recipe", "init": "google/vit-base-patch16-224", "train": {"steps": 30, "seed": 7},
        "data": {
            "type": "b:LabelledImageData", "root": "/home/someone/secret/roses",
            "more": ["/home/someone/a", "~/b", "c/d"],
        },
    }  # fmt: skip
    (root / "config.json").write_text(json.dumps(config))
    return root


def test_a_card_says_task_data_metrics_and_base(run_folder, classifier):
    test = {"step": 30, "split": "test", "accuracy": 91.25, "loss": 0.31, "note": "no number", "bad": float("nan")}
    write_card(classifier, RunFolder(run_folder), run_folder / "export", test)
    card = ModelCard.load(run_folder / "export" / CARD)
    said = card.data
    assert (said.pipeline_tag, said.library_name) == ("image-classification", "transformers")
    assert said.base_model == "google/vit-base-patch16-224"
    assert {each.metric_type: each.metric_value for each in said.eval_results} == {"accuracy": 91.25, "loss": 0.31}
    assert {each.dataset_name for each in said.eval_results} == {"roses"}
    assert {each.task_type for each in said.eval_results} == {"image-classification"}
    count = sum(leaf.size for leaf in jax.tree.leaves(classifier.model))
    for text in (f"{count:,} parameters", "in 30 steps (seed 7)", "91.25", "root: roses", "# flowers"):
        assert text in card.text, text
    assert "someone" not in card.content
    assert "more: ['a', 'b', 'c/d']" in card.text


def test_a_local_start_is_no_base_model(run_folder, classifier, tmp_path):
    config = json.loads((run_folder / "config.json").read_text())
    (run_folder / "config.json").write_text(json.dumps({**config, "init": str(tmp_path)}))
    write_card(classifier, RunFolder(run_folder), run_folder / "export", {"step": 1})
    card = ModelCard.load(run_folder / "export" / CARD)
    assert card.data.base_model is None
    assert str(tmp_path) not in card.content
    assert f"It began with {tmp_path.name}." in card.text


def test_licence_and_languages_are_added_and_the_rest_stays(run_folder, classifier):
    write_card(classifier, RunFolder(run_folder), run_folder / "export", {"step": 1, "accuracy": 50.0})
    before = ModelCard.load(run_folder / "export" / CARD)
    license_card(run_folder / "export", license="apache-2.0", languages=("en", "de"))
    after = ModelCard.load(run_folder / "export" / CARD)
    assert (after.data.license, after.data.language) == ("apache-2.0", ["en", "de"])
    assert (after.text, after.data.eval_results) == (before.text, before.data.eval_results)


def test_a_folder_without_a_card_gets_one(tmp_path, classifier):
    hub.save(classifier, tmp_path / "model")
    license_card(tmp_path / "model", license="mit")
    assert ModelCard.load(tmp_path / "model" / CARD).data.license == "mit"


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "tag", "library"),
    [
        ("bert", "fill-mask", "transformers"),
        ("gpt2", "text-generation", "transformers"),
        ("whisper", "automatic-speech-recognition", "transformers"),
        ("detr", "object-detection", "transformers"),
        ("dit", "unconditional-image-generation", "diffusers"),
        ("cct", "image-classification", "flax_transformer"),
    ],
)
def test_the_hubs_words(name, tag, library):
    pretrained = hub.load(BY_NAME[name])
    assert (pipeline_tag(pretrained), library_of(pretrained)) == (tag, library)


def test_words_are_of_uses_that_there_are():
    assert set(OF_HUB) <= set(USES)
    assert {"cct", "mixer"} <= set(families())


def test_a_run_sends_its_finished_model_alone(run_folder, classifier, run):
    write_card(classifier, RunFolder(run_folder), run_folder / "export", {"step": 1})
    (run_folder / "metrics.jsonl").write_text("{}\n")
    (run_folder / "export" / "train.py").write_text("print()\n")
    code, out, _ = run("push", run_folder, "someone/flowers", "--dry-run", "--license", "mit")
    assert code == 0
    names = {line.split()[0] for line in out.splitlines()[:-1]}
    assert names == {"README.md", "config.json", "model.safetensors"}
    assert "which --no-dry-run would send to someone/flowers" in out
    assert ModelCard.load(run_folder / "export" / CARD).data.license is None


def test_what_is_sent_is_what_was_listed(run_folder, monkeypatch):
    sent = {}

    class Api:
        def create_repo(self, name, **options):
            sent["made"] = (name, options)

        def upload_folder(self, **options):
            sent["folder"] = options
            return type("Made", (), {"commit_url": "address"})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    sending = plan_push(run_folder)
    assert push(sending, "someone/flowers", private=True) == "address"
    assert sent["made"] == ("someone/flowers", {"private": True, "exist_ok": True})
    assert sent["folder"]["allow_patterns"] == [name for name, _ in sending.files]
    assert sent["folder"]["folder_path"] == run_folder / "export"


def test_a_hub_that_is_not_there_is_said_in_a_sentence(run_folder, monkeypatch):
    def refuse(*args, **options):
        raise OSError("no route\nand more")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(ValueError, match=r"^the hub did not take someone/flowers: no route$"):
        pushing.push(plan_push(run_folder), "someone/flowers")


def test_what_cannot_be_pushed_is_refused(run_folder, tmp_path):
    with pytest.raises(ValueError, match="what is pushed is a checkpoint's folder or a run that exports one"):
        plan_push(tmp_path)
    (run_folder / "export" / "model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"files that can run code when opened are not pushed, got model\.bin"):
        plan_push(run_folder)
    (run_folder / "export" / "model.bin").unlink()
    (run_folder / "export" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="is the run finished"):
        plan_push(run_folder)


@pytest.mark.parametrize("name", ["flowers", "a/b/c", "some one/flowers", "-a/b"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match="a repository is OWNER/NAME, got"):
        check_repository(name)
