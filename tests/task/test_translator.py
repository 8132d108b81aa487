"""The experiment's arithmetic: scores, batches, the final model, decoding limits."""

import dataclasses

import jax
import pytest
import sacrebleu
from flax import nnx

from flax_transformer.data.synthetic import Numbers
from flax_transformer.metric.bleu import score
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import Embedding
from flax_transformer.parallel import MeshConfig
from flax_transformer.task.experiment import Experiment
from flax_transformer.task.recipe import rows_of
from flax_transformer.task.sentence_pair import BPE, VOCAB_MULTIPLE, Batching
from flax_transformer.task.spec import Spec, sized
from flax_transformer.task.translator import Search, padded_length
from flax_transformer.train.config import from_json, to_json
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.recipe import translation

HYPOTHESES = ["ein kleiner hund läuft .", "zwei männer sitzen am tisch", "haus"]
REFERENCES = ["ein kleiner hund rennt .", "zwei männer sitzen am tisch", "ein haus"]


def test_scores_are_those_of_sacrebleu():
    found = score(HYPOTHESES, REFERENCES)
    assert found.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert found.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert found.tokenized_bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], tokenize="none", force=True).score
    assert found.exact_match == pytest.approx(100 / 3)
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize(("references", "given"), [
    (["eins", "zwei drei vier"], {"chrf", "exact_match"}),
    (["eins", "zwei, drei"], {"chrf", "exact_match"}),
    (["eins", "zwei, drei vier"], {"bleu", "chrf", "exact_match"}),  # the comma is a token for BLEU alone
    (["eins", "a b c d"], {"bleu", "chrf", "tokenized_bleu", "exact_match"}),
])  # fmt: skip
def test_bleu_is_given_where_a_reference_has_four_tokens(references, given):
    """Else it would be 0 beside an exact match of 100 %."""
    found = score(references, references).metrics()
    assert found.keys() == given
    assert all(value == pytest.approx(100) for value in found.values())


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], []), ([], []), (["a"], ["a", "b"])])
def test_scoring_needs_a_reference_each(hypotheses, references):
    with pytest.raises(ValueError, match=f"got {len(hypotheses)} hypotheses, {len(references)} references"):
        score(hypotheses, references)


def translator(**options):
    return translation(model=transformer_tiny(), data=Numbers(), **options)


def test_an_experiment_survives_its_config_file():
    whole = translator(smoothing=0.2, mesh=MeshConfig(fsdp=2), search=Search(beams=3, penalty="gnmt"))
    assert from_json(to_json(whole)) == whole


def test_embeddings_are_rounded_up_to_whole_tiles():
    config = sized(transformer_tiny(), Spec(uses=("text2text-generation",), vocab=9_713, multiple=VOCAB_MULTIPLE))
    rows = jax.eval_shape(lambda: Embedding(config.embedding, rngs=nnx.Rngs(0)).rows)
    assert (config.embedding.vocab, rows.shape[0]) == (9_713, 9_728)
    assert dataclasses.replace(config, embedding=transformer_tiny().embedding) == transformer_tiny()


@pytest.mark.parametrize(
    ("length", "padded"), [(1, 8), (8, 8), (9, 16), (32, 32), (33, 48), (64, 64), (65, 96), (129, 192)]
)
def test_few_lengths_are_decoded(length, padded):
    assert padded_length(length) == padded


def test_padding_wastes_little_and_shapes_are_few():
    lengths = [padded_length(n) for n in range(1, 1025)]
    assert all(n <= p <= max(n * 1.5, n + 7) for n, p in enumerate(lengths, start=1))
    assert len(set(lengths)) < 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: Search(beams=2, n_best=3),
        lambda: Search(ratio=-1.0),
        lambda: BPE(merges=-1),
        lambda: Batching(tokens=64, max_tokens=128),
        lambda: translator(smoothing=1.0),
        lambda: Experiment(optimizer=OptimizerConfig(schedule=ScheduleConfig(warmup=2_000))),
        lambda: Experiment(track=("mlflow",)),
    ],
)
def test_settings_that_cannot_work_are_refused(make):
    with pytest.raises(ValueError, match="got"):
        make()


def test_an_experiment_without_a_task_says_so(tmp_path):
    with pytest.raises(TypeError, match="Experiment does not say how to train"):
        Experiment(optimizer=OptimizerConfig(schedule=ScheduleConfig(warmup=1))).task(RunFolder(tmp_path))


def test_rows_of_a_batch_divide_over_the_mesh():
    assert rows_of(MeshConfig(data=2, fsdp=4)) == 8
    assert rows_of(MeshConfig()) == jax.device_count()
