"""The loops against Hugging Face `generate`, on one random automaton that both run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.decode import Beam, Greedy, PowerPenalty, beam_search, greedy

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# With fewer states, different sequences would pass the same transitions in another order, equal but for rounding.
V, M, EOS, PAD, STATES, ROWS = 13, 9, 2, 1, 1009, 6


class Automaton(transformers.PreTrainedModel, transformers.GenerationMixin):
    """Logits are the row of a table chosen by a state that digests every token: bit for bit what `step` returns."""

    config_class = transformers.PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, table):
        super().__init__(transformers.PretrainedConfig(vocab_size=V))
        self.register_buffer("table", torch.tensor(table))
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.generation_config = transformers.GenerationConfig(use_cache=False)

    def forward(self, input_ids, **kwargs):
        state, states = torch.zeros_like(input_ids[:, 0]), []
        for token in input_ids.T:
            state = (state * 31 + token) % STATES
            states.append(state)
        logits = self.table[torch.stack(states, 1)]
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def make_table(seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(STATES, V)).astype("float32") * 1.5
    table[:, EOS] += rng.choice([-1.0, 0.5, 2.0])  # long, medium and short sequences
    return table


def make_prompts(seed, length):
    tokens = np.random.default_rng(seed + 100).integers(3, V, size=(ROWS, length))
    state = np.zeros(ROWS, np.int32)
    for token in tokens[:, :-1].T:
        state = (state * 31 + token) % STATES
    return tokens, state.astype(np.int32)


def step(cache, token):
    state = (cache["state"] * 31 + token) % STATES
    return cache["table"][state], {**cache, "state": state}


def reorder(cache, rows):
    return {**cache, "state": cache["state"][rows]}


def generate(table, prompts, **options):
    ids = torch.tensor(prompts)
    options = {"eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": M, "do_sample": False, **options}
    with torch.no_grad():
        out = Automaton(table).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    tokens = np.full((len(out.sequences), M), options["pad_token_id"])
    tokens[:, : out.sequences.shape[1] - prompts.shape[1]] = out.sequences[:, prompts.shape[1] :]
    return tokens, out


@pytest.mark.parametrize("length", [1, 3])
def test_greedy_equals_generate(length):
    config = Greedy(max_length=M, eos=EOS, pad=PAD)
    run = jax.jit(lambda cache, prompt: greedy(step, cache, prompt, config))
    for seed in range(6):
        table, (prompts, state) = make_table(seed), make_prompts(seed, length)
        got = run({"table": jnp.array(table), "state": jnp.array(state)}, jnp.array(prompts[:, -1], jnp.int32)).best
        tokens, out = generate(table, prompts)
        np.testing.assert_array_equal(got.tokens, tokens)
        for t, scores in enumerate(out.scores):
            want = torch.log_softmax(scores, -1).numpy()[np.arange(ROWS), tokens[:, t]]
            want = np.where(t < np.array(got.lengths), want, 0)
            np.testing.assert_allclose(got.logprobs[:, t], want, atol=1e-5)


def check_beam(beams, alpha, stop, *, eos=EOS, pad=PAD, length=1, process=None, seeds=range(4), **options):
    config = Beam(
        max_length=M,
        eos=eos,
        pad=pad,
        beams=beams,
        n_best=beams,
        length_penalty=PowerPenalty(alpha=alpha),
        early_stopping=stop,
    )
    run = jax.jit(lambda cache, prompt: beam_search(step, cache, prompt, config, reorder=reorder, process=process))
    for seed in seeds:
        table, (prompts, state) = make_table(seed), make_prompts(seed, length)
        cache = {"table": jnp.array(table), "state": jnp.repeat(jnp.array(state), beams)}
        got = run(cache, jnp.array(prompts[:, -1], jnp.int32))
        tokens, out = generate(
            table,
            prompts,
            num_beams=beams,
            num_return_sequences=beams,
            length_penalty=alpha,
            early_stopping=stop,
            eos_token_id=list(eos) if isinstance(eos, tuple) else eos,
            pad_token_id=pad,
            **options,
        )
        np.testing.assert_array_equal(got.tokens.reshape(-1, M), tokens)
        np.testing.assert_array_equal(got.lengths.reshape(-1), (out.beam_indices >= 0).sum(-1))
        np.testing.assert_allclose(got.scores.reshape(-1), out.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stop", [True, False, "never"])
@pytest.mark.parametrize(("beams", "alpha"), [(4, 0.0), (4, 0.6), (4, 1.0), (4, 2.0), (4, -1.0), (5, 0.6), (5, 2.0)])
def test_beam_search_equals_generate(beams, alpha, stop):
    check_beam(beams, alpha, stop)


@pytest.mark.parametrize("stop", [True, False, "never"])
def test_the_prompt_does_not_count_as_length(stop):
    check_beam(4, 1.5, stop, length=4)


@pytest.mark.parametrize("stop", [True, False, "never"])
def test_several_end_tokens_as_in_generate(stop):
    check_beam(3, 1.0, stop, eos=(EOS, 7, 9))


def test_the_end_token_may_pad_as_in_generate():
    check_beam(4, 1.0, False, pad=EOS)


def test_two_beams_as_in_generate():
    check_beam(2, 1.0, False, seeds=range(10))


@pytest.mark.parametrize("stop", [True, False])
def test_a_processor_acts_on_log_probabilities_as_in_generate(stop):
    """Repetition penalty: the one that sees the difference between logits and log-probabilities."""

    def penalise(logprobs, tokens, t):
        seen = jax.nn.one_hot(jnp.where(jnp.arange(M) < t, tokens, -1), V).any(1)
        return jnp.where(seen, jnp.where(logprobs < 0, logprobs * 1.5, logprobs / 1.5), logprobs)

    class Penalise(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] == 1:
                return scores
            return transformers.RepetitionPenaltyLogitsProcessor(1.5)(input_ids[:, 1:], scores)

    check_beam(4, 1.0, stop, process=penalise, logits_processor=transformers.LogitsProcessorList([Penalise()]))
