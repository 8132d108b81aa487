"""Constraints and stop sequences against Hugging Face `generate`, on the automaton and on a real model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(
        "generation", "constraints of `generate`: penalties, n-grams, bad words, lengths, forced tokens"
    ),
]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_decode_parity import EOS, PAD, ROWS, STATES, Automaton, M, make_prompts, make_table, reorder, step  # noqa: E402

from flax_transformer.decode import Beam, Constraints, Greedy, beam_search, greedy, make_process  # noqa: E402

BEAMS = 4


class EndsWith(transformers.StoppingCriteria):
    """What is generated ends with one of some token sequences."""

    def __init__(self, prompt, sequences):
        self.prompt, self.sequences = prompt, sequences

    def __call__(self, input_ids, scores, **kwargs):
        rows = [row[self.prompt :] for row in input_ids.tolist()]
        return torch.tensor([any(tuple(row[-len(s) :]) == s for s in self.sequences) for row in rows])


def expected(model, prompts, mask, stop, **options):
    """Tokens of all hypotheses, padded to M."""
    criteria = [EndsWith(prompts.shape[1], stop)] if stop else None
    with torch.no_grad():
        tokens = model.generate(
            torch.tensor(prompts),
            attention_mask=torch.tensor(mask),
            max_new_tokens=M,
            do_sample=False,
            pad_token_id=PAD,
            stopping_criteria=criteria,
            **options,
        )[:, prompts.shape[1] :].numpy()
    return np.pad(tokens, ((0, 0), (0, M - tokens.shape[1])), constant_values=PAD)


def run_greedy(constraints, stop=()):
    config = Greedy(max_length=M, eos=EOS, pad=PAD, stop=stop)

    @jax.jit
    def run(cache, prompts, padding):
        process = make_process(constraints, prompts, padding)
        return greedy(step, cache, prompts[:, -1], config, process=process).tokens

    return run


def run_beam(constraints, stop=(), early_stopping=False):
    config = Beam(max_length=M, eos=EOS, pad=PAD, stop=stop, beams=BEAMS, n_best=BEAMS, early_stopping=early_stopping)

    @jax.jit
    def run(cache, prompts, padding):
        process = make_process(constraints, prompts, padding)
        cache = {**cache, "state": jnp.repeat(cache["state"], BEAMS)}
        return beam_search(step, cache, prompts[:, -1], config, reorder=reorder, process=process).tokens

    return run


def padded(prompts, padding):
    """Put pad tokens in front; the automaton digests them like others."""
    prompts = np.where(np.arange(prompts.shape[1]) < padding[:, None], PAD, prompts)
    state = np.zeros(ROWS, np.int32)
    for token in prompts[:, :-1].T:
        state = (state * 31 + token) % STATES
    return prompts, state.astype(np.int32)


def check(run, *, length, padding=None, seeds=range(4), stop=(), **options):
    changed = False
    padding = np.zeros(ROWS, int) if padding is None else np.array(padding)
    options = {"eos_token_id": EOS, **options}
    plain = {name: options[name] for name in ("num_beams", "num_return_sequences", "early_stopping") if name in options}
    for seed in seeds:
        table = make_table(seed)
        prompts, state = padded(make_prompts(seed, length)[0], padding)
        mask = (np.arange(length) >= padding[:, None]).astype(int)
        got = run(
            {"table": jnp.array(table), "state": jnp.array(state)}, jnp.array(prompts, jnp.int32), jnp.array(padding)
        )
        want = expected(Automaton(table), prompts, mask, stop, **options)
        np.testing.assert_array_equal(got.reshape(-1, M), want)
        changed |= (want != expected(Automaton(table), prompts, mask, (), eos_token_id=EOS, **plain)).any()
    assert changed, "the constraint must matter"


BAD = ((4,), (5, 6), (7, 8, 9), (3, 10), (11, 11), (EOS,), (12, EOS), (9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9))
CASES = {
    "repetition": (3, {"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "allure": (3, {"repetition_penalty": 0.6}, {"repetition_penalty": 0.6}),
    "unigram": (3, {"no_repeat_ngram": 1}, {"no_repeat_ngram_size": 1}),
    "bigram": (3, {"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
    "bad words": (3, {"bad_words": BAD, "eos": EOS}, {"bad_words_ids": [list(word) for word in BAD]}),
    "min_new_tokens": (3, {"min_length": 5, "eos": EOS}, {"min_new_tokens": 5}),
    "min_length": (3, {"min_length": 5, "eos": EOS}, {"min_length": 8}),
    "first": (1, {"first": 7}, {"forced_bos_token_id": 7}),
    "last": (3, {"last": EOS}, {"forced_eos_token_id": EOS}),
    "last of two": (3, {"last": (5, 4)}, {"forced_eos_token_id": [5, 4]}),
    "suppress": (3, {"suppress": (3, 8, 9)}, {"suppress_tokens": [3, 8, 9]}),
    "begin": (3, {"suppress_first": (3, 8, 9, 10)}, {"begin_suppress_tokens": [3, 8, 9, 10]}),
    "begin after first": (
        1,
        {"suppress_first": (3, 7, 8, 9), "first": 7},
        {"begin_suppress_tokens": [3, 7, 8, 9], "forced_bos_token_id": 7},
    ),
    "renormalize": (
        3,
        {"suppress": (3, 8, 9), "renormalize": True},
        {"suppress_tokens": [3, 8, 9], "renormalize_logits": True},
    ),
}
ALL = (
    {
        "repetition_penalty": 1.4, "no_repeat_ngram": 2, "bad_words": BAD, "min_length": 4, "eos": EOS, "last": EOS,
        "suppress": (8, 9),
    },
    {
        "repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "bad_words_ids": [list(word) for word in BAD],
        "min_new_tokens": 4, "forced_eos_token_id": EOS, "suppress_tokens": [8, 9],
    },
)  # fmt: skip
CASES["together"] = (4, *ALL)
CASES["together and first"] = (1, {**ALL[0], "first": 4}, {**ALL[1], "forced_bos_token_id": 4})


@pytest.mark.parametrize("case", CASES)
def test_greedy_under_constraints_equals_generate(case):
    length, ours, theirs = CASES[case]
    check(run_greedy(Constraints(**ours)), length=length, **theirs)


# Two last tokens at one price are a tie, which torch decides anyhow.
@pytest.mark.parametrize("case", sorted({*CASES} - {"last of two"}))
def test_beam_search_under_constraints_equals_generate(case):
    length, ours, theirs = CASES[case]
    check(run_beam(Constraints(**ours)), length=length, num_beams=BEAMS, num_return_sequences=BEAMS, **theirs)


def test_trigrams_reach_back_into_the_prompt_as_in_generate():
    """Three tokens only, so that trigrams repeat."""
    few = tuple(token for token in range(13) if token not in (5, 6, 7))
    theirs = {"no_repeat_ngram_size": 3, "suppress_tokens": list(few)}
    for run, options in ((run_greedy, {}), (run_beam, {"num_beams": BEAMS, "num_return_sequences": BEAMS})):
        check(run(Constraints(no_repeat_ngram=3, suppress=few)), length=6, **theirs, **options)


@pytest.mark.parametrize("penalty", [1.5, 0.7])
def test_padding_is_not_repeated_but_in_ngrams_as_in_generate(penalty):
    ours = Constraints(repetition_penalty=penalty, no_repeat_ngram=2)
    theirs = {"repetition_penalty": penalty, "no_repeat_ngram_size": 2}
    for run, options in ((run_greedy, {}), (run_beam, {"num_beams": BEAMS, "num_return_sequences": BEAMS})):
        check(run(ours), length=5, padding=[0, 4, 3, 1, 2, 0], **theirs, **options)


STOP = ((5, 6), (7,), (3, 4, 5), (8, 8), (9, 10), (10, 3))


def test_greedy_with_stop_sequences_equals_generate():
    check(run_greedy(Constraints(), STOP), length=2, stop=STOP, seeds=range(8))


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_beam_search_with_stop_sequences_equals_generate(early_stopping):
    options = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "early_stopping": early_stopping}
    check(run_beam(Constraints(), STOP, early_stopping), length=2, stop=STOP, seeds=range(8), **options)


def test_stop_sequences_under_constraints_equal_generate():
    options = {"num_beams": BEAMS, "num_return_sequences": BEAMS}
    check(run_beam(Constraints(**ALL[0]), STOP), length=3, stop=STOP, **ALL[1], **options)


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=61, n_positions=32, initializer_range=0.3
    )
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("beams", [1, BEAMS])
def test_a_language_model_under_all_constraints_equals_generate(gpt2, beams):
    """Hugging Face decodes with its cache; our step asks the same model for all positions."""
    prompts = np.random.default_rng(0).integers(3, 61, size=(3, 5)).astype(np.int32)
    words = ((4,), (5, 6), *((int(token), int(token)) for token in prompts[:, -1]))
    constraints = Constraints(
        repetition_penalty=1.3, no_repeat_ngram=2, bad_words=words, min_length=4, eos=EOS, last=EOS, suppress=(8, 9)
    )

    def evaluate(tokens, count):
        with torch.no_grad():
            return gpt2(torch.tensor(np.array(tokens))[:, : int(count)]).logits[:, -1].numpy()

    def model(cache, token):
        tokens = jax.lax.dynamic_update_index_in_dim(cache["tokens"], token, cache["count"], axis=1)
        count = cache["count"] + 1
        shape = jax.ShapeDtypeStruct((len(token), 61), jnp.float32)
        return jax.pure_callback(evaluate, shape, tokens, count), {"tokens": tokens, "count": count}

    start = np.repeat(np.pad(prompts[:, :-1], ((0, 0), (0, M + 1))), beams, axis=0)
    cache = {"tokens": jnp.array(start), "count": jnp.array(4)}
    process, options = make_process(constraints, jnp.array(prompts)), {"max_length": M, "eos": EOS, "pad": PAD}
    if beams == 1:
        got = greedy(model, cache, jnp.array(prompts[:, -1]), Greedy(**options), process=process)
    else:
        config = Beam(**options, beams=beams, n_best=beams)
        got = beam_search(model, cache, jnp.array(prompts[:, -1]), config, process=process)
    theirs = {**ALL[1], "repetition_penalty": 1.3, "bad_words_ids": [list(word) for word in words]}
    want = expected(
        gpt2, prompts, np.ones_like(prompts), (), num_beams=beams, num_return_sequences=beams, use_cache=True,
        eos_token_id=EOS, **theirs,
    )  # fmt: skip
    np.testing.assert_array_equal(got.tokens.reshape(-1, M), want)
