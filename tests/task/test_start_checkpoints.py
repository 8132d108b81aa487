"""Recipes that begin with a checkpoint: its model and its texts are used, and the export is the trained model."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.bench.experiment import from_experiment
from flax_transformer.bench.workload import Size
from flax_transformer.data.synthetic import CaptionedScenes, SceneCaptions, SpokenStringData
from flax_transformer.data.text.parallel import TextCorpus
from flax_transformer.objective import TokenLoss
from flax_transformer.task.captioning import Captions
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_translator
from flax_transformer.task.spec import Spec
from flax_transformer.task.speech_recognition import Transcripts
from flax_transformer.task.start import OUTPUTS, StartConfig, load_start, start_seq2seq
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import Search
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.checkpoints import checkpoint, corpus, speech, tokenizer_files
from tests.task.test_classify_images import experiments

pytestmark = pytest.mark.rotates

GREEDY = Search(beams=1, ratio=0.0, extra=12, batch=4)
LINES = "zero one\ntwo three four\nfive\nsix seven\neight nine\n" * 60
FAST = ["marian"]
SEQ2SEQ = ["t5", "bart", "marian", "mt5"]
KINDS = [*SEQ2SEQ, "whisper", "wav2vec2", "bert", "roberta", "vision-encoder-decoder"]


def recipe_of(kind, root):
    """Return the recipe that a kind of checkpoint is trained by, on data in a folder."""
    if kind in SEQ2SEQ:
        recipe = experiments("translate_text")["finetune"]
        examples = replace(recipe.examples, batch=replace(recipe.examples.batch, tokens=256, buckets=1, max_tokens=24))
        data = TextCorpus(root=str(corpus(root / "corpus")), validation="val", test="test")
        evaluators = (Translations(search=GREEDY, count=2),)
        return replace(recipe, data=data, examples=examples, evaluators=evaluators, objective=TokenLoss())
    if kind in ("whisper", "wav2vec2"):
        recipe = experiments("recognise_speech")["finetune_seq2seq" if kind == "whisper" else "finetune_ctc"]
        own = {"language": "de"} if kind == "whisper" else {"seconds": 1}
        texts = ["one two", "nine", "seven"] * 4 if kind == "whisper" else ["one", "no", "nine"] * 4
        search = Search(beams=1) if kind == "whisper" else None
        return replace(
            recipe, data=SpokenStringData(root=str(speech(root / "speech", texts)), holdout=0.2),
            examples=replace(recipe.examples, rows=4, **own), evaluators=(Transcripts(search=search, images_kept=2),),
        )  # fmt: skip
    if kind in ("bert", "roberta"):
        (root / "text.txt").write_text(LINES)
        recipe = experiments("pretrain_bert")["further"]
        data = replace(recipe.data, text=str(root / "text.txt"), holdout=0.2)
        return replace(recipe, data=data, examples=replace(recipe.examples, rows=4, length=24, validated=8))
    recipe = experiments("caption_images")["finetune"]
    return replace(
        recipe, data=SceneCaptions(shapes=CaptionedScenes(train=24, held_out=4, size=16)),
        examples=replace(recipe.examples, rows=4, length=16), evaluators=(Captions(beams=1, count=2),),
    )  # fmt: skip


def short(kind, root, steps=4, **changes):
    """Make a recipe of a few steps."""
    recipe = recipe_of(kind, root)
    optimizer = replace(recipe.optimizer, learning_rate=1e-2, schedule=ScheduleConfig(name="constant"))
    return replace(
        recipe, optimizer=optimizer, init=str(checkpoint(kind, root / "checkpoint")),
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2), **changes,
    )  # fmt: skip


def run_folder(path):
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


def records(folder, split):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if "second" not in k} for line in lines if line["split"] == split]


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=[k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def finished(kind, tmp_path_factory):
    root = tmp_path_factory.mktemp("start")
    recipe = short(kind, root)
    return recipe, root / "run", train(recipe, root / "run")


def called(pretrained, batch):
    """Return the logits of a batch by the names that a checkpoint's class has for its inputs."""
    inputs = dict(batch["inputs"])
    reads, lengths = pretrained.architecture.inputs.needs[0], inputs.pop("lengths", None)
    first = jnp.asarray(next(inputs[name] for name in ("source", "tokens", "samples") if name in inputs))
    given = {reads: jnp.moveaxis(first, -1, 1) if reads in ("input_features", "pixel_values") else first}
    if lengths is not None:
        given["attention_mask"] = (np.arange(first.shape[1]) < lengths[:, None]).astype(np.int32)
    if "target" in inputs:
        given["decoder_input_ids"] = inputs["target"]
    if "types" in inputs:
        given["token_type_ids"] = inputs["types"]
    output = pretrained(**given)
    return output.prediction_logits if "next-sentence-prediction" in pretrained.architecture.uses else output.logits


def test_training_begins_with_what_the_checkpoint_computes(finished, tmp_path):
    recipe, _, _ = finished
    task = recipe.task(run_folder(tmp_path))
    given = hub.load(recipe.init)
    for ours, theirs in zip(*map(jax.tree.leaves, (task.model, given.model)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    batch = next(task.batches)
    logits = called(given, batch)
    if "samples" in batch["inputs"]:
        hidden = task.model.hidden_states(**batch["inputs"])
        np.testing.assert_allclose(task.model.output(hidden), logits, rtol=1e-4, atol=1e-4)
        return
    logits = np.asarray(logits, np.float64)
    if "positions" in batch:
        logits = np.take_along_axis(logits, batch["positions"][..., None], axis=1)
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(scores, np.asarray(batch["labels"])[..., None], -1)[..., 0]
    total, sums = task.objective(task.model, batch)
    mine = sums.get("masked_loss", total) / sums["count"]
    np.testing.assert_allclose(mine, (losses * batch["weights"]).sum() / batch["weights"].sum(), rtol=1e-4)


def test_training_lowers_the_loss_and_the_export_is_the_trained_model(kind, finished):
    recipe, folder, model = finished
    losses = [each["loss"] for each in records(folder, "train")]
    assert losses[-1] < losses[0]
    exported, given = hub.load(folder / "export"), hub.load(recipe.init)
    for ours, theirs in zip(*map(jax.tree.leaves, (exported.model, model)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert exported.config["architectures"] == given.config["architectures"]
    assert exported.tokenizer.files == given.tokenizer.files
    assert dict(exported.generation) == dict(given.generation)


def test_the_export_writes_what_the_run_wrote(kind, finished):
    _, folder, _ = finished
    exported, shown = hub.load(folder / "export"), samples(folder)
    if kind in SEQ2SEQ:
        for each in shown:
            ids = exported.generate(**exported.tokenizer([each["source"]]), max_new_tokens=12)
            assert exported.tokenizer.decode(ids)[0].strip() == each["hypothesis"].strip()
        translator, search = open_translator(folder)
        found = translator([each["source"] for each in shown], search)
        assert [best[0].text for best in found] == [each["hypothesis"] for each in shown]
    elif kind in ("whisper", "wav2vec2"):
        from flax_transformer.task.speech_recognition import transcribe

        how = {"language": "de"} if kind == "whisper" else {}
        heard = transcribe(exported, [folder / each["audio"] for each in shown], **how)
        assert [each.text for each in heard] == [each["hypothesis"] for each in shown]
    else:
        assert len(shown) > 1


def test_a_resumed_run_is_the_uninterrupted_one(kind, finished, tmp_path):
    recipe, folder, model = finished
    train(replace(recipe, train=replace(recipe.train, steps=2)), tmp_path)
    again = train(recipe, tmp_path)
    for ours, theirs in zip(*map(jax.tree.leaves, (again, model)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [r["loss"] for r in records(tmp_path, "train")] == [r["loss"] for r in records(folder, "train")]


@pytest.mark.parametrize(
    ("kind", "source", "target", "prompt"),
    [
        ("t5", "a", "ab", (3,)),
        ("bart", "<s>a", "<s>ab", (2,)),
        ("marian", "a", "ab", (2,)),
        ("vision-encoder-decoder", "a", "ab", (1,)),
    ],
)
def test_texts_have_the_marks_of_the_checkpoint(kind, source, target, prompt, tmp_path):
    tokenizer = start_seq2seq(str(checkpoint(kind, tmp_path / "checkpoint")))
    spelled = lambda each, text: "".join(each.tokens(each.encode([text])[0]))  # noqa: E731
    assert spelled(tokenizer, "a") == source
    assert spelled(tokenizer.target, "ab") == target
    assert (tokenizer.prompt, tokenizer.eos, tokenizer.pad) == (prompt, 2, 3)
    assert tokenizer.decode([[4, 5, 2, 6, 3]]) == ["ab"]


def test_whisper_begins_with_its_language_and_task(tmp_path):
    folder = str(checkpoint("whisper", tmp_path / "checkpoint"))
    assert start_seq2seq(folder, "de").prompt == (21, 23, 25, 28)
    assert start_seq2seq(folder, "en", "translate").prompt == (21, 22, 24, 28)
    assert start_seq2seq(folder, "de").target.encode(["one"])[0][:3] == [23, 25, 28]
    with pytest.raises(ValueError, match="say by --language which: de, en"):
        start_seq2seq(folder)
    with pytest.raises(ValueError, match="language must be one of de, en, got 'fr'"):
        start_seq2seq(folder, "fr")


def test_without_a_padding_token_the_end_is_padding_and_is_learned(tmp_path):
    nothing = {"pad_token_id": None, "decoder_start_token_id": None}
    folder = checkpoint("vision-encoder-decoder", tmp_path / "checkpoint", **nothing)
    for name, content in tokenizer_files("$A", pad_token=None).items():
        (folder / name).write_text(content)
    recipe = replace(recipe_of("vision-encoder-decoder", tmp_path), init=str(folder))
    task = recipe.task(run_folder(tmp_path))
    batch = next(task.batches)
    ends = batch["weights"].sum(axis=1).astype(int) - 1
    assert (np.take_along_axis(batch["labels"], ends[:, None], 1) == 2).all()
    assert (batch["labels"][batch["weights"] == 0] == 2).all()
    assert (batch["inputs"]["target"][:, 0] == 1).all()


def test_letters_are_written_as_the_checkpoint_knows_them_or_by_a_new_head(tmp_path):
    recipe = short("wav2vec2", tmp_path)
    task = recipe.task(run_folder(tmp_path / "one"))
    assert task.model.cfg.head.outputs == 9
    data = SpokenStringData(root=str(speech(tmp_path / "other", ["two", "one"] * 6)), holdout=0.2)
    with pytest.raises(ValueError, match="lacks 't', 'w'; --letters data"):
        replace(recipe, data=data).task(run_folder(tmp_path / "two"))
    anew = replace(recipe, data=data, examples=replace(recipe.examples, letters="data"))
    model = anew.task(run_folder(tmp_path / "three")).model
    assert model.cfg.head.outputs == 10  # five marks, and e, n, o, t, w
    np.testing.assert_array_equal(model.backbone.project.kernel, task.model.backbone.project.kernel)


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("recognise_speech:finetune_ctc", "whisper", "hears samples, .* hears spectra"),
        ("recognise_speech:finetune_seq2seq", "wav2vec2", "hears spectra, .* hears samples"),
        ("translate_text:finetune", "bert", "no architecture of bert does text2text-generation"),
        ("pretrain_bert:further", "t5", "lacks cls_token, sep_token"),
        ("text_to_text:", "t5", "<extra_id_0> to <extra_id_9>"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused_in_a_sentence(name, kind, rule, tmp_path):
    file, _, which = name.partition(":")
    recipe = experiments(file)[which] if which else experiment(file)
    if file == "translate_text":
        recipe = recipe_of("t5", tmp_path)
    if file == "text_to_text":
        recipe = replace(recipe, data=replace(recipe.data, train=20, validation=4, test=4))
    recipe = replace(recipe, init=str(checkpoint(kind, tmp_path / "checkpoint")))
    with pytest.raises(ValueError, match=rule):
        recipe.task(run_folder(tmp_path / "run"))


def test_a_checkpoint_without_a_tokenizer_is_refused_by_the_file_it_lacks(tmp_path):
    recipe = short("marian", tmp_path)
    (tmp_path / "checkpoint" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"no tokenizer.json, and no others, such as Marian's source.spm"):
        recipe.task(run_folder(tmp_path / "run"))


def experiment(name):
    import runpy

    from tests.task.test_classify_images import ROOT

    return runpy.run_path(str(ROOT / "experiments" / f"{name}.py"))["EXPERIMENT"]


@pytest.mark.parametrize("kind", ["marian", *(pytest.param(k, marks=pytest.mark.slow) for k in ("bert", "wav2vec2"))])
def test_a_checkpoint_is_computed_in_another_format_and_kept_in_float32(kind, tmp_path):
    usual = short(kind, tmp_path)
    other = replace(usual, model=StartConfig(compute="bfloat16", remat="full"))
    one, two = (each.task(run_folder(tmp_path / str(i))) for i, each in enumerate((usual, other)))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(two.model)} == {"float32"}
    batch = next(one.batches)
    losses = [jax.value_and_grad(lambda m, t=t: t.objective(m, batch)[0])(t.model) for t in (one, two)]
    (full, _), (half, others) = losses
    assert full != half
    np.testing.assert_allclose(half, full, rtol=0.03)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(others)} == {"float32"}
    assert '"remat": "full"' in (tmp_path / "1" / "model.json").read_text()


def test_a_recipe_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="give --init FOLDER"):
        recipe_of("marian", tmp_path).task(run_folder(tmp_path))


@pytest.mark.parametrize(("name", "kind"), [("text_to_text", "t5"), ("denoise", "bart")])
def test_exercises_and_damaged_texts_are_those_of_the_checkpoints_tokens(name, kind, tmp_path):
    recipe = experiment(name)
    if kind == "t5":
        mix = replace(recipe.examples.mix, fill=0.0)
        recipe = replace(recipe, data=replace(recipe.data, train=20, validation=4, test=4))
        recipe = replace(recipe, examples=replace(recipe.examples, mix=mix, rows=4))
    else:
        (tmp_path / "text.txt").write_text(LINES)
        data = replace(recipe.data, text=str(tmp_path / "text.txt"), holdout=0.1)
        recipe = replace(recipe, data=data, examples=replace(recipe.examples, rows=4, length=20))
    folder = str(checkpoint(kind, tmp_path / "checkpoint"))
    task = replace(recipe, init=folder).task(run_folder(tmp_path / "run"))
    tokenizer, batch = start_seq2seq(folder), next(task.batches)
    first = np.asarray(batch["inputs"]["target"])[:, 0]
    assert (first == tokenizer.bos).all()
    texts = tokenizer.decode(batch["labels"])
    again = [[*ids, tokenizer.eos] for ids in tokenizer.target.encode(texts)]
    kept = [row[weights > 0].tolist() for row, weights in zip(batch["labels"], batch["weights"], strict=True)]
    known = [number for number, row in enumerate(kept) if tokenizer.unk not in row]
    assert known
    assert [kept[number] for number in known] == [again[number] for number in known]


def test_what_is_measured_is_the_checkpoints_model(tmp_path):
    recipe = short("marian", tmp_path)
    workload = from_experiment("finetune", recipe, Size(dtype="bfloat16", remat="full"))
    model = jax.eval_shape(workload.init, jax.random.key(0))
    assert (model.cfg.embedding.vocab, model.cfg.encoder.remat) == (40, "full")
    with pytest.raises(ValueError, match="give --init FOLDER"):
        from_experiment("finetune", replace(recipe, init=""), Size())


def test_a_model_of_samples_learns_classes_and_its_recordings_are_drawn(tmp_path):
    recipe = experiments("recognise_speech")["finetune_digits"]
    data = replace(recipe.data, tones=replace(recipe.data.tones, voices=1, takes=7))
    init = checkpoint("wav2vec2", tmp_path / "checkpoint", architectures=["Wav2Vec2ForSequenceClassification"])
    recipe = replace(
        recipe, data=data, init=str(init), examples=replace(recipe.examples, rows=4, seconds=1),
        optimizer=replace(recipe.optimizer, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=2, log_every=1, eval_every=2, checkpoint_every=2),
    )  # fmt: skip
    train(recipe, tmp_path / "run")
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert samples
    assert all((tmp_path / "run" / each[kind]).stat().st_size for each in samples for kind in ("picture", "audio"))


READERS = {
    "bert": "Bert", "roberta": "Roberta", "electra": "Electra", "distilbert": "DistilBert", "mpnet": "MPNet",
    "modernbert": "ModernBert",
}  # fmt: skip


@pytest.mark.parametrize("family", READERS)
@pytest.mark.parametrize(
    ("own", "wanted"),
    [("QuestionAnswering", "classification"), ("SequenceClassification", "question-answering")],
)
def test_a_head_of_another_use_is_left_out(family, own, wanted, tmp_path):
    """A reader begins a classifier, and a classifier a reader: the encoder is the same, the head is new."""
    lenient = hub.Lenient(architecture=f"{READERS[family]}For{own}", initialise=OUTPUTS, ignore=OUTPUTS)
    hub.save(hub.load(f"tests/hub/golden/{family}", lenient=lenient), tmp_path)
    spec = Spec(uses=(wanted,), classes=("no", "yes") if wanted == "classification" else ())
    start, given = load_start(str(tmp_path), spec, None, seed=0), hub.load(tmp_path)
    assert wanted in start.architecture.uses
    for ours, theirs in zip(*(jax.tree.leaves(each.model.backbone) for each in (start, given)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
