import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.tree_util import Partial

from flax_transformer.decode import Beam, Constraints, Greedy, Sampling, greedy, make_process, sample, stream
from flax_transformer.models.seq2seq import DecoderCache, Seq2Seq
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_fields

pytestmark = pytest.mark.proves("generation", "streaming and stop sequences")

V, M, EOS, PAD = 7, 50, 2, 1


def markov(table, state, token):
    state = (state * 3 + token) % len(table)
    return table[state], state


def make_step(seed):
    return Partial(markov, jnp.array(np.random.default_rng(seed).normal(size=(13, V)).astype("float32") * 2))


def collect(generator):
    """Put the chunks together; give what the generator returns too."""
    chunks = []
    while True:
        try:
            chunks.append(next(generator))
        except StopIteration as end:
            return chunks, end.value


def check(chunks, decoded, whole):
    tokens = np.concatenate(chunks, axis=1)
    np.testing.assert_array_equal(tokens, whole.tokens[:, 0, : tokens.shape[1]])
    assert tokens.shape[1] == whole.lengths.max()
    jax.tree.map(np.testing.assert_array_equal, decoded, whole)


PROMPT = jnp.arange(5) % V
STATE = jnp.zeros(5, jnp.int32)


@pytest.mark.rotates
@pytest.mark.parametrize("chunk", [1, 4, 45, 100])
@pytest.mark.parametrize("eos", [EOS, ()])
def test_the_stream_is_the_loop_in_pieces(chunk, eos):
    config = Greedy(max_length=M, eos=eos, pad=PAD)
    chunks, decoded = collect(stream(make_step(0), STATE, PROMPT, config, chunk=chunk))
    check(chunks, decoded, greedy(make_step(0), STATE, PROMPT, config))
    assert all(tokens.shape[1] == chunk for tokens in chunks[:-1])


def test_a_stream_of_samples_is_the_sample():
    config, key = Sampling(max_length=M, eos=EOS, pad=PAD, temperature=1.5, top_k=5), jax.random.key(3)
    chunks, decoded = collect(stream(make_step(1), STATE, PROMPT, config, key=key, chunk=3))
    check(chunks, decoded, sample(make_step(1), STATE, PROMPT, key, config))


@pytest.mark.rotates
def test_constraints_and_stop_sequences_hold_in_a_stream():
    config = Greedy(max_length=M, eos=(), pad=PAD, stop=((3, 4), (0, 0), (5, 6)))
    process = make_process(Constraints(no_repeat_ngram=2, repetition_penalty=1.2), PROMPT[:, None])
    chunks, decoded = collect(stream(make_step(2), STATE, PROMPT, config, process=process))
    whole = greedy(make_step(2), STATE, PROMPT, config, process=process)
    check(chunks, decoded, whole)
    assert 1 < whole.lengths.min() < whole.lengths.max() < M


@pytest.mark.slow
def test_a_model_streams_over_its_growing_cache():
    shallow = with_fields(transformer_tiny(23), depth=1)
    model = Seq2Seq(shallow, rngs=nnx.Rngs(0))
    config = Greedy(max_length=40, eos=(), pad=PAD)
    cache = jax.jit(lambda m: m.init_cache(jnp.ones((2, 5, 128)), None, config.stages[0]))(model)
    step, prompt = Partial(Seq2Seq.step, model), jnp.array([3, 4])
    whole = jax.jit(lambda step, cache: greedy(step, cache, prompt, config, grow=DecoderCache.grow))(step, cache)
    chunks, decoded = collect(stream(step, cache, prompt, config, grow=DecoderCache.grow, chunk=9))
    np.testing.assert_array_equal(np.concatenate(chunks, axis=1), whole.tokens[:, 0])
    np.testing.assert_allclose(decoded.scores, whole.scores, rtol=1e-5)
    assert [tokens.shape[1] for tokens in chunks] == [9, 9, 9, 5, 4, 4]
    # Each call consumed the cache of the one before, but not the caller's.
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((step, cache, prompt)))


CALLS = []


def counted(cache, token):
    jax.debug.callback(lambda: CALLS.append(1))
    return jnp.broadcast_to(9.0 * jax.nn.one_hot(jnp.where(cache < 5, 3, EOS), V), (len(token), V)), cache + 1


def test_no_step_runs_after_the_end():
    CALLS.clear()
    chunks, _ = collect(stream(counted, jnp.array(0), PROMPT, Greedy(max_length=M, eos=EOS), chunk=4))
    jax.effects_barrier()
    assert [tokens.shape[1] for tokens in chunks] == [4, 2]
    assert len(CALLS) == 6


def test_tokens_are_handed_out_while_later_ones_are_still_to_come():
    CALLS.clear()
    tokens = next(stream(counted, jnp.array(-100), PROMPT, Greedy(max_length=M, eos=EOS)))
    jax.effects_barrier()
    assert tokens.tolist() == [[3]] * 5
    assert len(CALLS) == 2


def test_streams_of_one_shape_share_a_compiled_program():
    traces = []

    def traced(table, state, token):
        traces.append(1)
        return markov(table, state, token)

    counts = []
    for seed in range(3):
        prompt = (PROMPT + seed) % V
        process = make_process(Constraints(no_repeat_ngram=3), prompt[:, None])
        step = Partial(traced, make_step(seed).args[0])
        collect(stream(step, STATE, prompt, Greedy(max_length=10, eos=EOS), process=process))
        counts.append(len(traces))
    assert counts == [counts[0]] * 3


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (Beam(max_length=4, eos=EOS), {}, "beam search cannot be streamed"),
        (Sampling(max_length=4, eos=EOS), {}, "sampling needs a key and greedy decoding none, .* key=None"),
        (Greedy(max_length=4, eos=EOS), {"key": jax.random.key(0)}, "sampling needs a key and greedy decoding none"),
        (Greedy(max_length=4, eos=EOS), {"chunk": 0}, "chunk must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_streamed_is_refused_at_once(config, options, message):
    with pytest.raises(ValueError, match=message):
        stream(make_step(0), STATE, PROMPT, config, **options)
