"""The 2017 model against Hugging Face's Marian, which is the same architecture: logits and generated tokens."""

import tempfile

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.decode import Beam, Greedy, PowerPenalty
from flax_transformer.task.translator import decode_batch

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("transformer", "parity", "logits and tokens of Hugging Face's Marian"),
]

V, D, HEADS, EOS, PAD = 50, 24, 4, 2, 3


def theirs(seed, activation):
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=V, d_model=D, encoder_layers=2, decoder_layers=3, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=40, decoder_ffn_dim=32, activation_function=activation,
        scale_embedding=True, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=0,
        decoder_start_token_id=PAD, forced_eos_token_id=None, init_std=0.4,
    )  # fmt: skip
    return transformers.MarianMTModel(config).eval()


def ours(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return hub.load(folder).model


@pytest.fixture(scope="module", params=[(0, "relu"), (1, "swish"), (2, "gelu")], ids=lambda p: p[1])
def pair(request):
    reference = theirs(*request.param)
    return ours(reference), reference


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    source, lengths = random.integers(4, V, (5, 9)), np.array([9, 6, 9, 2, 4])
    source[np.arange(9)[None] >= lengths[:, None]] = PAD
    return source, random.integers(4, V, (5, 7)), lengths


def test_logits_equal_marian(pair, batch):
    mine, reference = pair
    source, target, lengths = batch
    mask = torch.tensor(np.arange(9)[None] < lengths[:, None]).long()
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(source), attention_mask=mask, decoder_input_ids=torch.tensor(target)
        ).logits.numpy()
    got = mine(jnp.asarray(source), jnp.asarray(target), jnp.asarray(lengths))
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("beams", "penalty", "early"),
    [(1, 1.0, False), (4, 1.0, True), (4, 0.6, False), (5, 0.0, False), (3, 1.5, "never")],
)
def test_generated_tokens_equal_marian(pair, batch, beams, penalty, early):
    mine, reference = pair
    source, _, lengths = batch
    mask = torch.tensor(np.arange(9)[None] < lengths[:, None]).long()
    options = {} if beams == 1 else {"length_penalty": penalty, "early_stopping": early}
    with torch.no_grad():
        expected = reference.generate(
            input_ids=torch.tensor(source), attention_mask=mask, num_beams=beams, max_new_tokens=12, do_sample=False,
            bad_words_ids=None, **options,
        ).numpy()[:, 1:]  # fmt: skip
    if beams == 1:
        config = Greedy(max_length=12, eos=EOS, pad=PAD)
    else:
        config = Beam(
            max_length=12,
            eos=EOS,
            pad=PAD,
            beams=beams,
            length_penalty=PowerPenalty(alpha=penalty),
            early_stopping=early,
        )
    got = decode_batch(mine, jnp.asarray(source), jnp.asarray(lengths), config=config, bos=PAD)
    np.testing.assert_array_equal(np.asarray(got.tokens[:, 0])[:, : expected.shape[1]], expected)
