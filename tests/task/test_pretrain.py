"""Pre-training end to end on a tiny text, and the parts it is made of."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text import Rows, load_tokenizer, train_byte_bpe, train_word_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer, load_hub_tokenizer
from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.objective import MaskedLoss
from flax_transformer.task.experiment import train
from flax_transformer.task.fill_mask import DOCUMENT, Guesses, MaskedRows, MaskedTexts, TextLines, fill
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.proves("bert", "train", "[`pretrain_bert`](../experiments/pretrain_bert.py)"),
]

TEXT = "".join(f"the dog number {i} barks at a cat\n  and then it runs home\n\n" for i in range(160))
ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=1, embed=16, position="learned", max_length=32, types=2, norm=1e-12, scaled=False,
        dropout=0.1,
    ),
    block=transformer_block(embed=16, heads=2, inner=32, norm_eps=1e-12, activation="gelu", dropout=0.1),
    depth=1,
)  # fmt: skip


EXAMPLES = MaskedTexts(vocabulary=VocabularyConfig(size=300), rows=8, length=32, validated=16)


def experiment(data=TextLines(), examples=EXAMPLES):
    return Recipe(
        model=MaskedLMConfig(encoder=ENCODER), family="bert", data=data, examples=examples, objective=MaskedLoss(),
        evaluators=(Guesses(count=2),),
        optimizer=OptimizerConfig(schedule=ScheduleConfig(name="constant", warmup=1)),
        train=TrainConfig(steps=4, log_every=2, eval_every=4, checkpoint_every=2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return folder, train(experiment(data=TextLines(text=text, holdout=0.4)), folder)


def leaves_equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def test_a_run_exports_what_it_trained(finished, capsys):
    folder, model = finished
    loaded = hub.load(folder / "export")
    assert loaded.config["architectures"] == ["BertForPreTraining"]
    assert leaves_equal(loaded.model, model)
    tokenizer = loaded.tokenizer
    assert (tokenizer.cls, tokenizer.sep, tokenizer.mask) == (1, 2, tokenizer.vocab_size - 1)
    output = loaded(**tokenizer(["the <mask> barks"], ["and then it runs"]))
    assert output.prediction_logits.shape[-1] == tokenizer.vocab_size
    assert output.seq_relationship_logits.shape == (1, 2)


def test_a_run_says_how_well_it_guesses(finished):
    folder, _ = finished
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    test = next(record for record in records if record["split"] == "test")
    assert test.keys() >= {"masked_loss", "masked_accuracy", "sentence_loss", "sentence_accuracy"}
    np.testing.assert_allclose(test["loss"], test["masked_loss"] + test["sentence_loss"], rtol=1e-5)
    assert all(0 <= test[name] <= 1 for name in ("masked_accuracy", "sentence_accuracy"))
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 2
    assert all("<mask>" in sample["source"] for sample in samples)


def test_a_resumed_run_ends_the_same(finished, text, tmp_path):
    short = experiment(data=TextLines(text=text, holdout=0.4))
    train(replace(short, train=replace(short.train, steps=2)), tmp_path)
    assert leaves_equal(train(short, tmp_path), finished[1])


def test_sentences_that_do_not_follow_each_other_train_without_next_sentences(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"this film number {i} is good\t1\n" for i in range(60)))
    model = train(experiment(data=TextLines(sentences=(str(path),))), tmp_path / "run")
    loaded = hub.load(tmp_path / "run" / "export")
    assert loaded.config["architectures"] == ["BertForMaskedLM"]
    assert leaves_equal(loaded.model, model)
    assert "\t" not in (tmp_path / "run" / "samples.jsonl").read_text().replace("\\t", "\t")


def test_lines_of_running_text_are_kept_in_order_and_blank_ones_left_out(text):
    documents = {split: TextLines(text=text, holdout=0.25).lines(split) for split in ("train", "validation")}
    assert max(len(document) for split in documents.values() for document in split) == DOCUMENT
    joined = ["\n".join(line for document in documents[split] for line in document) for split in documents]
    assert "\n".join(joined).replace("\n", "") == TEXT.replace("\n", "")


def test_sentence_files_are_parted_each_at_its_end(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("".join(f"{name} {i}\t0\n\n" for i in range(10)))
    corpus = TextLines(sentences=(str(tmp_path / "a"), str(tmp_path / "b")), holdout=0.2)
    assert corpus.lines("validation") == [["a 8"], ["a 9"], ["b 8"], ["b 9"]]
    assert len(corpus.lines("train")) == 16


def test_masked_rows_put_masked_tokens_first_in_their_order():
    example = {
        "tokens": np.array([1, 9, 9, 6, 2]), "labels": np.array([1, 5, 7, 6, 2]), "weights": np.array([0.0, 1, 1, 0, 0])
    }  # fmt: skip
    batch = MaskedRows(rows=Rows(length=6), most=3)([example, None])
    assert batch["positions"][0, :2].tolist() == [1, 2]
    assert batch["labels"][0, :2].tolist() == [5, 7]
    assert batch["weights"].tolist() == [[1, 1, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match="at most 1 masked tokens, got 2"):
        MaskedRows(rows=Rows(length=6), most=1)([example])


@pytest.mark.parametrize("make", [lambda t: train_byte_bpe(t, vocab_size=300), lambda t: train_word_bpe(t, merges=40)])
def test_a_mask_is_one_more_token_and_only_a_checkpoint_reads_it_in_texts(make, tmp_path):
    plain = make([TEXT])
    ours = plain.with_mask()
    assert (plain.mask, ours.mask, ours.vocab_size) == (None, plain.vocab_size, plain.vocab_size + 1)
    texts = ["the <mask> barks", "a cat </s>"]
    assert ours.encode(texts) == plain.encode(texts)
    ours.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json").mask == ours.mask
    HubTokenizer.of_encoder(ours).save(tmp_path / "out")
    loaded = load_hub_tokenizer(tmp_path / "out")
    (dog,), (barks,) = (plain.encode([word]) for word in ("the", " barks"))
    assert loaded(["the <mask> barks"])["input_ids"].tolist() == [[1, *dog, ours.mask, *barks, 2]]
    pair = loaded(["the"], ["the"])
    assert pair["input_ids"].tolist() == [[1, *dog, 2, *dog, 2]]
    assert pair["token_type_ids"].tolist() == [[0] * (len(dog) + 2) + [1] * (len(dog) + 1)]
    assert plain.decode([[*dog, ours.mask, ours.eos]]) == ["the"] == ours.decode([[*dog, ours.mask, ours.eos]])


def test_filling_masks_one_token_and_knows_it(finished):
    told = fill(hub.load(finished[0] / "export"), "the dog barks at a cat", 32)
    assert told["source"].count("<mask>") == 1
    assert told["target"] not in ("", "<mask>")
    assert told["hypothesis"].endswith(f"(was {told['target']!r})")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"length": 33}, "length=33, 32 positions"),
        ({"rows": 0}, "at least 1 and length 1, got 0"),
        ({"share": 1.0}, "share"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, rule):
    with pytest.raises(ValueError, match=rule):
        experiment(examples=replace(EXAMPLES, **changes))
