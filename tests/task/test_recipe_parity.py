"""What a translation run exports is opened by transformers, and is the model."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.task.test_recipe import translated  # noqa: F401  a fixture

pytestmark = pytest.mark.parity

SENTENCES = ["three hundred five", "ninety-nine thousand one"]


@pytest.mark.rotates
def test_transformers_gives_the_logits_of_a_translator(translated):  # noqa: F811
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder, model = translated
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "export").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "export")
    assert type(theirs).__name__ == "MarianMTModel"
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    target = torch.tensor([[1, 9, 30], [1, 12, 40]])
    with torch.no_grad():
        wanted = theirs(**inputs, decoder_input_ids=target).logits.numpy()
        written = theirs.generate(**inputs, max_new_tokens=6, num_beams=1).numpy()
    source, lengths = jnp.asarray(inputs["input_ids"].numpy()), jnp.asarray(inputs["attention_mask"].sum(1).numpy())
    np.testing.assert_allclose(model(source, jnp.asarray(target.numpy()), lengths), wanted, rtol=1e-4, atol=1e-5)
    tokens = target[:, :1].numpy()
    for _ in range(written.shape[1] - 1):
        logits = np.asarray(model(source, jnp.asarray(tokens), lengths))[:, -1]
        tokens = np.concatenate([tokens, logits.argmax(-1)[:, None]], axis=1)
    for row, ours in zip(written, tokens, strict=True):
        end = np.flatnonzero(row == 2)
        stop = end[0] + 1 if len(end) else len(row)
        assert row[:stop].tolist() == ours[:stop].tolist()
