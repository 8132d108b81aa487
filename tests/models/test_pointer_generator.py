"""An encoder-decoder that copies: decoding equals recomputation, padding changes nothing, probabilities sum to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.decode import Beam, Greedy
from flax_transformer.models.text.pointer import PointerConfig, pointer_generator
from flax_transformer.nn import EmbeddingConfig, with_fields
from flax_transformer.task.translator import decode_batch, ready
from tests.fake_devices import on_eight

pytestmark = pytest.mark.proves("pointer", "decode", "steps = recomputation, beams share their source")

V, S, T = 20, 6, 5
LENGTHS = jnp.array([6, 3])


@pytest.fixture(scope="module")
def model():
    return pointer_generator(V, embed=16, heads=2, inner=16, depth=2, dropout=0.0).build(nnx.Rngs(0))


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(0)
    return jnp.asarray(draw.integers(4, V, (2, S))), jnp.asarray(draw.integers(4, V, (2, T)))


@pytest.mark.rotates
def test_probabilities_sum_to_one(model, texts):
    logs = model(*texts, LENGTHS)
    assert logs.shape == (2, T, V)
    np.testing.assert_allclose(np.exp(logs).sum(-1), 1, atol=1e-5)


@pytest.mark.rotates
def test_padding_is_neither_read_nor_copied(model, texts):
    source, target = texts
    other = source.at[1, 3:].set(7)
    np.testing.assert_allclose(model(source, target, LENGTHS), model(other, target, LENGTHS), atol=1e-5)
    states = model.hidden_states(source, target, lengths=LENGTHS)
    assert float(jnp.abs(states.attention[1, :, 3:]).max()) == 0


def test_what_is_only_in_the_source_is_more_probable_than_without_copying(model, texts):
    states = model.hidden_states(*texts, lengths=LENGTHS)
    token = int(texts[0][0, 0])
    assert float(jnp.exp(model.output(states).logits())[0, 0, token]) >= float(
        (1 - jax.nn.sigmoid(states.gate[0, 0])) * states.attention[0, 0, 0]
    )


@pytest.mark.rotates
@pytest.mark.parametrize("laid_out", [False, True])
def test_steps_give_what_all_at_once_gives(model, texts, laid_out):
    source, target = texts
    whole, stepping = model(source, target, LENGTHS), ready(model) if laid_out else model
    cache = stepping.init_cache(stepping.encode(source, LENGTHS), LENGTHS, T)
    for t in range(T):
        logits, cache = stepping.step(cache, target[:, t])
        np.testing.assert_allclose(logits, whole[:, t], atol=2e-4)


def recomputed(model, source, length, tokens):
    """Return the log-probability of each token, from the whole text before it."""
    read = jnp.array([[1, *tokens[:-1]]])
    logs = jax.nn.log_softmax(model(source[None], read, jnp.array([length])))
    return np.take_along_axis(np.asarray(logs)[0], np.array(tokens)[:, None], axis=-1)[:, 0]


@pytest.mark.rotates
@pytest.mark.parametrize(
    "config", [Greedy(max_length=5, eos=2, pad=0), Beam(max_length=5, eos=2, pad=0, beams=3)], ids=["greedy", "beam"]
)
def test_decoding_scores_what_recomputation_does(model, texts, config):
    found = decode_batch(model, texts[0], LENGTHS, config=config, bos=1)
    for row in range(2):
        count = int(found.lengths[row, 0])
        tokens = found.tokens[row, 0, :count].tolist()
        expected = recomputed(model, texts[0][row], int(LENGTHS[row]), tokens)
        np.testing.assert_allclose(found.logprobs[row, 0, :count], expected, atol=1e-3)


def test_a_source_of_another_vocabulary_is_refused():
    base = pointer_generator(V, embed=16, heads=2, inner=16)
    with pytest.raises(ValueError, match="reads tokens of the vocabulary it writes"):
        with_fields(base, source_embedding=EmbeddingConfig(vocab=9, embed=16))
    assert isinstance(base, PointerConfig)


CODE = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from flax_transformer.bench.workload import Size, from_config
from flax_transformer.models.preset import presets
from flax_transformer.nn import with_fields, with_precision
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh, tree_shardings

jax.config.update("jax_enable_x64", True)
config = with_precision(presets()["pointer_generator"](), compute="float64", params="float64")
config = with_fields(config, embed=32, heads=4, inner=48, vocab=96, depth=2)
work = from_config("pointer_generator", config, Size(batch=8, length=12))
model, batch = work.init(jax.random.key(0)), jax.tree.map(jnp.asarray, work.batch)
learn = jax.jit(jax.value_and_grad(lambda model, batch: work.objective(model, batch, key=None)[0]))
one, found = learn(model, batch), {}
for size in (MeshConfig(data=8), MeshConfig(data=2, fsdp=2, tensor=2)):
    mesh = make_mesh(size)
    with jax.set_mesh(mesh):
        laid = jax.device_put(model, tree_shardings(model, mesh)), jax.device_put(batch, batch_sharding(mesh))
        other = jax.device_get(learn(*laid))
    far = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-9)), jax.device_get(one), other)
    found[str(size.sizes())] = max(jax.tree.leaves(far))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_eight_devices_learn_what_one_does():
    found, _ = on_eight("-c", CODE)
    assert len(found) == 2
    assert max(found.values()) < 1e-6  # sums of the loss are float32
