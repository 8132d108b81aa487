"""What transformers makes of checkpoints that training began with and ended in: losses, logits, written tokens."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.task.experiment import train
from flax_transformer.train.folder import RunFolder
from tests.task.test_start_checkpoints import KINDS, SEQ2SEQ, called, samples, short

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def finished(kind, tmp_path_factory):
    root = tmp_path_factory.mktemp("start")
    recipe = short(kind, root, 3)
    return recipe, root / "run", train(recipe, root / "run")


def theirs_of(kind, folder):
    name = hub.load(folder).config["architectures"][0]
    return getattr(transformers, name).from_pretrained(folder).eval()


def given(pretrained, batch):
    """Return their names for the inputs of a batch."""
    inputs = dict(batch["inputs"])
    name, lengths = pretrained.architecture.inputs.needs[0], inputs.pop("lengths", None)
    first = np.array(next(inputs[each] for each in ("source", "tokens", "samples") if each in inputs))
    if name in ("input_features", "pixel_values"):
        first = np.moveaxis(first, -1, 1)
    found = {name: torch.tensor(first)}
    if lengths is not None:
        found["attention_mask"] = torch.tensor(np.arange(first.shape[1]) < lengths[:, None]).long()
    if "types" in inputs:
        found["token_type_ids"] = torch.tensor(np.array(inputs["types"])).long()
    return {key: value.long() if key == "input_ids" else value for key, value in found.items()}


@pytest.mark.rotates
def test_their_loss_of_a_batch_is_ours(kind, finished, tmp_path):
    recipe, _, _ = finished
    task, checkpoint = recipe.task(RunFolder(tmp_path)), hub.load(recipe.init)
    theirs, batch = theirs_of(kind, recipe.init), next(task.batches)
    labels = np.where(batch["weights"] > 0, batch["labels"], -100)
    if "positions" in batch:
        whole = np.full(batch["inputs"]["tokens"].shape, -100)
        np.put_along_axis(whole, batch["positions"], labels, 1)
        labels = whole
    with torch.no_grad():
        if kind == "bert":
            output = theirs(**given(checkpoint, batch), labels=torch.tensor(labels).long())
            scores, truth = output.prediction_logits.flatten(0, 1), torch.tensor(labels).long().flatten()
            expected = torch.nn.functional.cross_entropy(scores, truth).item()
        else:
            theirs.config.ctc_loss_reduction = "sum"
            expected = theirs(**given(checkpoint, batch), labels=torch.tensor(labels).long()).loss.item()
    total, sums = task.objective(task.model, batch)
    if kind == "wav2vec2":
        total, sums = type(task.objective)(blank=0)(task.model, batch)[0], {"count": 1}
    np.testing.assert_allclose(sums.get("masked_loss", total) / sums["count"], expected, rtol=1e-4)


@pytest.mark.rotates
def test_their_logits_of_the_export_are_ours(kind, finished, tmp_path):
    recipe, folder, _ = finished
    ours, theirs = hub.load(folder / "export"), theirs_of(kind, folder / "export")
    batch = next(recipe.task(RunFolder(tmp_path)).batches)
    inputs = given(ours, batch)
    if "target" in batch["inputs"]:
        inputs["decoder_input_ids"] = torch.tensor(np.array(batch["inputs"]["target"])).long()
    with torch.no_grad():
        output = theirs(**inputs)
    expected = (output.prediction_logits if kind == "bert" else output.logits).numpy()
    seen = np.ones(expected.shape[:2], bool)
    if kind in ("bert", "roberta"):
        seen = inputs["attention_mask"].numpy() > 0
    np.testing.assert_allclose(np.asarray(called(ours, batch))[seen], expected[seen], rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
def test_they_write_what_the_run_wrote(kind, finished):
    _, folder, _ = finished
    if kind not in (*SEQ2SEQ, "whisper"):
        pytest.skip("writes nothing, or images that are in no file")
    ours, theirs = hub.load(folder / "export"), theirs_of(kind, folder / "export")
    for each in samples(folder):
        if kind == "whisper":
            made = ours.processor(folder / each["audio"])["input_features"]
            tokens = theirs.generate(torch.tensor(made), language="de", task="transcribe").numpy()
            said = ours.tokenizer.decode(tokens[0])
        else:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "export")
            inputs = tokenizer([each["source"]], return_tensors="pt", return_token_type_ids=False)
            tokens = theirs.generate(**inputs, max_new_tokens=12, num_beams=1)
            said = tokenizer.decode(tokens[0], skip_special_tokens=True)
        assert said.strip() == each["hypothesis"].strip()
