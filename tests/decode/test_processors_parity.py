"""Every rule and filter, alone and all together, equals its class in transformers on random logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.decode import Constraints, SourceRules, compose, make_process, process_rows
from flax_transformer.ops.sampling import Cutoff, filter_logits

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("transformers.generation.logits_process")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("generation", "each logits processor of transformers, on random logits"),
]

V, R, P, M, EOS = 17, 5, 4, 9, (2, 5)
RANDOM = np.random.default_rng(0)
PROMPT, TOKENS = RANDOM.integers(0, V, (R, P)), RANDOM.integers(0, V, (R, M))
SOURCE = RANDOM.integers(0, V, (R, 12))
BIAS = (((3,), 2.5), ((4, 7), -1.5), ((1, 6, 2), 4.0), ((4, 7, 8), 1.0), ((11, 12), -3.0))
RULES = {
    "repetition": (Constraints(repetition_penalty=1.7), lambda: [hf.RepetitionPenaltyLogitsProcessor(1.7)]),
    "n-gram": (Constraints(no_repeat_ngram=2), lambda: [hf.NoRepeatNGramLogitsProcessor(2)]),
    "bad words": (
        Constraints(bad_words=((3,), (4, 7), (9, 1, 3))),
        lambda: [hf.NoBadWordsLogitsProcessor([[3], [4, 7], [9, 1, 3]], None)],
    ),
    "least length": (
        Constraints(min_length=4, eos=EOS), lambda: [hf.MinNewTokensLengthLogitsProcessor(P, 4, list(EOS), "cpu")]
    ),
    "last": (Constraints(last=EOS), lambda: [hf.ForcedEOSTokenLogitsProcessor(P + M, list(EOS), "cpu")]),
    "suppressed": (Constraints(suppress=(1, 6)), lambda: [hf.SuppressTokensLogitsProcessor([1, 6], "cpu")]),
    "suppressed first": (
        Constraints(suppress_first=(1, 6)), lambda: [hf.SuppressTokensAtBeginLogitsProcessor([1, 6], P, "cpu")]
    ),
    "bias": (Constraints(bias=BIAS), lambda: [hf.SequenceBiasLogitsProcessor({k: v for k, v in BIAS})]),
    "decay": (
        Constraints(decay=(2, 1.3), eos=EOS), lambda: [hf.ExponentialDecayLengthPenalty((2, 1.3), list(EOS), P)]
    ),
    "source": (
        Constraints(source=SourceRules(repetition_penalty=1.6)),
        lambda: [hf.EncoderRepetitionPenaltyLogitsProcessor(1.6, torch.tensor(SOURCE))],
    ),
    "source n-gram": (
        Constraints(source=SourceRules(no_repeat_ngram=2)),
        lambda: [hf.EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor(SOURCE))],
    ),
}  # fmt: skip
FILTERS = {
    "temperature": ({"temperature": 0.6}, lambda: [hf.TemperatureLogitsWarper(0.6)]),
    "top-k": ({"top_k": 4}, lambda: [hf.TopKLogitsWarper(4)]),
    "top-p": ({"top_p": 0.7}, lambda: [hf.TopPLogitsWarper(0.7)]),
    "min-p": ({"min_p": 0.2}, lambda: [hf.MinPLogitsWarper(0.2)]),
    "typical": ({"typical_p": 0.6}, lambda: [hf.TypicalLogitsWarper(0.6)]),
    "epsilon": ({"cutoff": Cutoff(epsilon=0.08)}, lambda: [hf.EpsilonLogitsWarper(0.08)]),
    "eta": ({"cutoff": Cutoff(eta=0.08)}, lambda: [hf.EtaLogitsWarper(0.08)]),
    "top-h": ({"cutoff": Cutoff(top_h=0.5)}, lambda: [hf.TopHLogitsWarper(0.5)]),
    "epsilon above all": ({"cutoff": Cutoff(epsilon=0.99)}, lambda: [hf.EpsilonLogitsWarper(0.99)]),
}
ALL = Constraints(
    bias=BIAS, source=SourceRules(repetition_penalty=1.6, no_repeat_ngram=2), repetition_penalty=1.7, no_repeat_ngram=3,
    bad_words=((3,), (4, 7)), min_length=3, eos=EOS, decay=(4, 1.3), suppress=(1,), suppress_first=(6,),
)  # fmt: skip


def theirs(processors, t, logits):
    ids, scores = np.concatenate([PROMPT, TOKENS[:, :t]], axis=1), torch.tensor(logits)
    for processor in processors:
        scores = processor(torch.tensor(ids), scores)
    return scores.numpy()


def logits_of(seed):
    return np.random.default_rng(seed).normal(0, 2, (R, V)).astype(np.float32)


def padded(t):
    return jnp.where(jnp.arange(M) < t, jnp.asarray(TOKENS), 0)


def close(got, want):
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_rules_equal_processors_at_every_length_and_by_row(name):
    constraints, make = RULES[name]
    process = make_process(constraints, PROMPT, source=jnp.asarray(SOURCE))
    run = jax.jit(lambda process, logits, tokens, t: process(logits, tokens, t))
    want = [theirs(make(), t, logits_of(t)) for t in range(M)]
    for t in range(M):
        close(run(process, logits_of(t), padded(t), jnp.array(t)), want[t])
    lengths = np.array([0, 3, 8, 5, 1])
    logits = np.stack([logits_of(t)[row] for row, t in enumerate(lengths)])
    tokens = jnp.stack([padded(t)[row] for row, t in enumerate(lengths)])
    got = jax.jit(process_rows)(process, logits, tokens, jnp.asarray(lengths))
    close(got, np.stack([want[t][row] for row, t in enumerate(lengths)]))


def test_all_rules_equal_all_processors_in_their_order():
    process = compose(make_process(ALL, PROMPT, source=jnp.asarray(SOURCE)), lambda logits, tokens, t: logits / 2)
    given = {**RULES, "n-gram": (None, lambda: [hf.NoRepeatNGramLogitsProcessor(3)]),
             "bad words": (None, lambda: [hf.NoBadWordsLogitsProcessor([[3], [4, 7]], None)]),
             "least length": (None, lambda: [hf.MinNewTokensLengthLogitsProcessor(P, 3, list(EOS), "cpu")]),
             "decay": (None, lambda: [hf.ExponentialDecayLengthPenalty((4, 1.3), list(EOS), P)]),
             "suppressed": (None, lambda: [hf.SuppressTokensLogitsProcessor([1], "cpu")]),
             "suppressed first": (None, lambda: [hf.SuppressTokensAtBeginLogitsProcessor([6], P, "cpu")])}  # fmt: skip
    order = ("bias", "source", "repetition", "n-gram", "source n-gram", "bad words", "least length", "decay",
             "suppressed", "suppressed first")  # fmt: skip
    processors = [each for name in order for each in given[name][1]()]
    for t in range(M):
        close(process(jnp.asarray(logits_of(t)), padded(t), jnp.array(t)), theirs(processors, t, logits_of(t)) / 2)


@pytest.mark.parametrize("name", FILTERS)
def test_filters_equal_warpers_also_traced_and_mapped(name):
    options, make = FILTERS[name]
    run = jax.jit(lambda logits, options: filter_logits(logits, **options, most=8 if "top_k" in options else None))
    for seed in range(20):
        logits = logits_of(seed)
        want = theirs(make(), 3, logits)
        close(filter_logits(logits, **options), want)
        close(run(logits, options), want)
        close(jax.vmap(lambda row, options=options: filter_logits(row, **options))(jnp.asarray(logits)), want)


def test_all_filters_equal_all_warpers_in_their_order():
    options = {"temperature": 1.4, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95,
               "cutoff": Cutoff(epsilon=0.02, eta=0.03, top_h=0.9)}  # fmt: skip
    warpers = [hf.TemperatureLogitsWarper(1.4), hf.TopHLogitsWarper(0.9), hf.TopKLogitsWarper(9),
               hf.TopPLogitsWarper(0.9), hf.MinPLogitsWarper(0.02), hf.TypicalLogitsWarper(0.95),
               hf.EpsilonLogitsWarper(0.02), hf.EtaLogitsWarper(0.03)]  # fmt: skip
    for seed in range(20):
        close(filter_logits(logits_of(seed), **options), theirs(warpers, 3, logits_of(seed)))


def test_cutoffs_are_checked():
    for name in ("epsilon", "eta", "top_h"):
        with pytest.raises(ValueError, match=f"{name} must be between 0 and 1, or None, got 1.5"):
            Cutoff(**{name: 1.5})
