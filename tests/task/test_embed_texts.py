"""Sentence encoders at work: batches of few shapes, prompts, classes nobody trained, a recipe from files to export."""

import json
import runpy
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text.sentence import RepeatedTexts, SentenceData, documented_functions
from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
from flax_transformer.models.text.sentence import sentence_encoder
from flax_transformer.nn import with_fields
from flax_transformer.objective.sentence import embed_columns
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.embedding import embed
from flax_transformer.task.line_search import search_lines
from flax_transformer.task.sentence_embedding import resolve_prompt
from flax_transformer.task.sentence_similarity import correlations
from flax_transformer.task.text_batches import batches, width_of
from flax_transformer.task.zero_shot import choose_among
from tests.hub.test_sentence_folder import ENCODER
from tests.task.checkpoints import LETTERS, tokenizer_files

DRAW = np.random.default_rng(0)
TEXTS = ["".join(DRAW.choice([*LETTERS[:-1]], n)) for n in (3, 9, 1, 13, 40, 2, 2, 7, 30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("encoder")
    for name, text in tokenizer_files("<s> $A </s>", model_max_length=16).items():
        (root / name).write_text(text)
    model = sentence_encoder(ENCODER, pools=("mean", "max"), normalise=True).build(nnx.Rngs(0))
    hub.save(hub.wrap(model, "BertModel", tokenizer=load_hub_tokenizer(root), pad_token_id=3), root / "made")
    settings = {"prompts": {"query": "ask ", "passage": "read "}, "default_prompt_name": "passage"}
    (root / "made/config_sentence_transformers.json").write_text(json.dumps(settings))
    return root / "made"


@pytest.fixture(scope="module")
def pretrained(folder):
    return hub.load(folder)


@pytest.mark.parametrize("tokens", [16, 64, 2048])
def test_batches_have_every_text_and_room_for_it(tokens):
    lengths = np.random.default_rng(tokens).integers(1, 300, 200)
    found = list(batches(lengths, tokens))
    assert sorted({int(i) for numbers, _ in found for i in numbers}) == list(range(200))
    assert all(lengths[numbers].max() <= width for numbers, width in found)
    assert all(len(numbers) * width <= max(tokens, width) for numbers, width in found)
    shapes = {(len(numbers), width) for numbers, width in found}
    assert len(shapes) <= len({width_of(int(n)) for n in lengths}) + 1
    filled = sum(len(numbers) for numbers, _ in found) - 200
    assert filled <= max(len(numbers) for numbers, _ in found) // 2


@pytest.mark.rotates
def test_a_text_has_the_same_vector_whatever_it_is_beside(pretrained):
    together = embed(pretrained, TEXTS, prompt="")
    for text, vector in zip(TEXTS, together, strict=True):
        inputs = pretrained.tokenizer([text], max_length=16, truncate=True)
        np.testing.assert_allclose(vector, pretrained(**inputs).sentence_embedding[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)


@pytest.mark.rotates
def test_prompts_go_before_texts(pretrained):
    np.testing.assert_array_equal(embed(pretrained, ["a b"], prompt="query"), embed(pretrained, ["ask a b"], prompt=""))
    np.testing.assert_array_equal(embed(pretrained, ["a b"]), embed(pretrained, ["a b"], prompt="read "))
    assert resolve_prompt(pretrained, "say: ") == "say: "
    with pytest.raises(ValueError, match="a prompt must be the name of one, passage, query, or a text with a space"):
        embed(pretrained, ["a"], prompt="question")
    with pytest.raises(ValueError, match="has vectors of texts of its own, nothing is pooled; got pooling=mean"):
        embed(pretrained, ["a"], "mean")


def test_commands_embed_and_choose(folder, pretrained, run):
    code, out, _ = run("embed", folder, "a b", "--prompt", "query")
    assert code == 0
    numbers = np.array(out.strip().split("\t")[1].split(), float)
    np.testing.assert_allclose(numbers, embed(pretrained, ["a b"], prompt="query")[0], atol=1e-4)
    code, out, _ = run("classify", folder, "a b", "--among", "sport", "food")
    ((best, other),) = choose_among(pretrained, ["a b"], ["sport", "food"])
    assert (code, [line.split("\t")[1] for line in out.splitlines()]) == (0, [best.name, other.name])
    code, _, said = run("classify", folder, "a b", "--several")
    assert (code, "template and several are of texts that are classified by --among" in said) == (1, True)


def test_lines_are_found_and_their_vectors_kept(folder, pretrained, run, tmp_path, monkeypatch):
    from flax_transformer.task import line_search

    lines = ["one two", "three", "", "four five six", "one two"]
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(lines))
    code, out, said = run("search", folder, "three", file, "--top", "3")
    assert (code, said) == (0, "")
    texts = [line for line in lines if line]
    expected = embed(pretrained, texts, prompt="passage") @ embed(pretrained, ["three"], prompt="query")[0]
    rows = [row.split("\t") for row in out.splitlines()]
    assert [float(row[0]) for row in rows] == pytest.approx(sorted(expected, reverse=True)[:3], abs=1e-4)
    assert all(lines[int(row[2]) - 1] == row[3] for row in rows)
    made = []
    inner = line_search.embed_sentences
    monkeypatch.setattr(line_search, "embed_sentences", lambda p, t, prompt: made.extend(t) or inner(p, t, prompt))
    file.write_text("\n".join([*lines, "seven"]))
    search_lines(pretrained, "three", file)
    assert made == ["seven", "three"]
    assert {hit.text for hit in search_lines(pretrained, "seven", tmp_path)} == {*texts, "seven"}
    for query, where, rule in (
        (" ", file, "a text to search by must not be empty"), ("a", tmp_path / "none", "there is none"),
        ("a", folder / "1_Pooling", "must have lines of text, got none"),
    ):  # fmt: skip
        with pytest.raises((ValueError, FileNotFoundError), match=rule):
            search_lines(pretrained, query, where)


def test_classes_are_told_by_cosines_with_the_template(pretrained):
    ((best, other),) = choose_among(pretrained, ["one"], ["sport", "food"], template="it is {}")
    vectors = embed(pretrained, ["one", "it is sport", "it is food"])
    shares = np.exp(20 * vectors[1:] @ vectors[0])
    expected = dict(zip(["sport", "food"], shares / shares.sum(), strict=True))
    assert best.probability >= other.probability
    np.testing.assert_allclose(
        [best.probability, other.probability], [expected[x.name] for x in (best, other)], rtol=1e-4
    )


def test_what_cannot_choose_is_told(pretrained):
    for texts, among, more, rule in (
        (["a"], ["one"], {}, "to choose takes at least two texts, got 'one'"),
        (
            ["a"],
            ["one", "two"],
            {"template": "none"},
            r"a template must have one \{\} where the class stands, got 'none'",
        ),
        ([" "], ["one", "two"], {}, "a text to classify must not be empty"),
        (["a"], ["one", "two"], {"several": True}, "takes a classifier with entailment"),
    ):
        with pytest.raises(ValueError, match=rule):
            choose_among(pretrained, texts, among, **more)
    with pytest.raises(ValueError, match="takes a checkpoint that matches images and texts, a sentence encoder, or a"):
        choose_among(hub.load("tests/hub/golden/gpt2"), ["a"], ["one", "two"])


def write(root, rows, name="train.tsv"):
    root.mkdir(exist_ok=True)
    (root / name).write_text("".join(f"{row}\n" for row in rows))
    return root


def test_rows_are_read_of_both_kinds_of_files(tmp_path):
    write(tmp_path, ["one\ttwo\tthree", "four\tfive\tsix"])
    write(tmp_path, ['["a", "b", 0.5]', '{"x": "c", "y": "d", "score": 2}'], "dev.jsonl")
    table = SentenceData(root=str(tmp_path)).read("train")
    assert (table["texts"], table["label"].tolist()) == ([("one", "two", "three"), ("four", "five", "six")], [1, 1])
    scored = SentenceData(root=str(tmp_path), scored=True).read("validation")
    assert (scored["texts"], scored["label"].tolist()) == ([("a", "b"), ("c", "d")], [0.5, 2])


@pytest.mark.parametrize(
    ("rows", "name", "scored", "rule"),
    [
        (["one"], "train.tsv", False, "line 1: a line must have at least two texts, as many as the first line, got 1"),
        (["a\tb", "a\tb\tc"], "train.tsv", False, "line 2: a line must have at least two texts, as many"),
        (["a\t "], "train.tsv", False, "line 1: texts must not be empty"),
        (["a\tb\tc"], "train.tsv", True, "line 1: a line must end with a number, got 'c'"),
        (["a\tb\tnan"], "train.tsv", True, "must end with a number"),
        (["3"], "train.jsonl", False, "line 1 must be an array or an object, got 3"),
        (["[1"], "train.jsonl", False, "line 1 must be JSON"),
        (["[1, 2]"], "train.jsonl", False, "line 1: texts must not be empty, got"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path, rows, name, scored, rule):
    with pytest.raises(ValueError, match=rule):
        SentenceData(root=str(write(tmp_path / "x", rows, name)), scored=scored).read("train")


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*dev\.tsv.*, nor one of \.csv, \.jsonl"):
        SentenceData(root=str(tmp_path)).read("validation")
    with pytest.raises(ValueError, match=r"scored pairs are read of a folder \(--data.root\), there is none"):
        SentenceData(scored=True).read("train")
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        SentenceData().read("dev")


@pytest.mark.slow
def test_functions_of_the_library_are_in_one_split():
    splits = [documented_functions(split)["texts"] for split in ("train", "validation", "test")]
    said = [text for rows in splits for text, _ in rows]
    assert len(said) == len(set(said)) > 2_000
    assert all(code.lstrip().startswith(("def ", "async def ")) for rows in splits for _, code in rows)


def test_rank_correlation_knows_order_alone():
    from scipy.stats import pearsonr, spearmanr

    one, two = np.random.default_rng(0).normal(size=(2, 30)).round(1)
    found = correlations(one, two)
    np.testing.assert_allclose(found["spearman"], spearmanr(one, two).statistic, atol=1e-9)
    np.testing.assert_allclose(found["pearson"], pearsonr(one, two).statistic, atol=1e-9)
    assert correlations(np.zeros(3), np.arange(3.0))["spearman"] == 0


def pairs(root, scored):
    """Write rows of two texts that have a letter in common."""
    draw = np.random.default_rng(0)
    for name in ("train", "dev", "test"):
        letters = [draw.choice([*LETTERS[:20]], 3) for _ in range(24)]
        rows = ["\t".join(" ".join(draw.permutation(each)) for _ in range(2)) for each in letters]
        write(root, [f"{row}\t{i / 24:.2f}" if scored else row for i, row in enumerate(rows)], f"{name}.tsv")
    return root


@pytest.mark.rotates
@pytest.mark.parametrize("name", [pytest.param("pairs", marks=pytest.mark.slow), "scored"])
@pytest.mark.proves("sentence", "train", "experiments/embed_texts.py, from files to a folder, and on from it")
def test_a_recipe_trains_exports_and_goes_on(tmp_path, name, capsys):
    from flax_transformer.task.experiment import train

    module = runpy.run_path("experiments/embed_texts.py")
    recipe = module["EXPERIMENTS"][name]
    small = with_fields(recipe.model, embed=8, heads=2, inner=8, depth=1)
    data = replace(recipe.data, root=str(pairs(tmp_path / "data", name == "scored")))
    examples = replace(recipe.examples, rows=8, length=8, vocabulary=replace(recipe.examples.vocabulary, size=300))
    objective = replace(recipe.objective, widths=(8, 4)) if name == "pairs" else recipe.objective
    short = replace(recipe.train, steps=4, log_every=2, eval_every=2, checkpoint_every=4)
    optimizer = replace(recipe.optimizer, schedule=replace(recipe.optimizer.schedule, warmup=1))
    recipe = replace(
        recipe, model=small, data=data, examples=examples, objective=objective, train=short, optimizer=optimizer
    )
    train(recipe, tmp_path / "run")
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["split"] == "test"
    assert recipe.evaluators[0].metric in last
    exported = open_checkpoint(str(tmp_path / "run"))
    assert exported.architecture.uses == ("sentence-similarity",)
    assert exported.model.cfg.head == small.head
    vectors = embed(exported, ["a b c", "c b a"])
    assert vectors.shape == (2, 8)
    further = replace(
        recipe,
        init=str(tmp_path / "run/export"),
        family="",
        model=module["FINETUNE"].model,
        train=replace(short, steps=2, checkpoint_every=2, eval_every=2),
    )
    train(further, tmp_path / "further")
    again = hub.load(tmp_path / "further/export")
    assert again.model.cfg.head == exported.model.cfg.head
    assert not np.allclose(embed(again, ["a b c"]), vectors[:1])


@pytest.mark.slow
@pytest.mark.proves("learning without labels", "SimCSE: texts beside themselves, told apart by dropout")
def test_texts_are_found_by_themselves_with_other_dropout():
    """Labels of pairs are in no row of training; both sides of a row are one text, and dropout tells them apart."""
    (train, dev), of = (RepeatedTexts().read(split) for split in ("train", "validation")), SentenceData()
    assert all(one == two for one, two in train["texts"])
    assert {one for one, _ in train["texts"]} == {text for row in of.read("train")["texts"] for text in row}
    assert list(dev["texts"]) == list(of.read("validation")["texts"])
    model = sentence_encoder(with_fields(ENCODER, dropout=0.3), normalise=True).build(nnx.Rngs(0))
    tokens = np.random.default_rng(0).integers(0, 5, (4, 1, 6)).repeat(2, axis=1).astype(np.int32)
    batch = {"inputs": {"tokens": tokens, "lengths": np.full((4, 2), 6, np.int32)}, "weights": np.ones(4, np.float32)}
    still, moved = (embed_columns(model, batch, key) for key in (None, jax.random.key(0)))
    np.testing.assert_allclose(still[:, 0], still[:, 1], atol=1e-6)
    assert np.abs(moved[:, 0] - moved[:, 1]).max(axis=-1).min() > 1e-3
