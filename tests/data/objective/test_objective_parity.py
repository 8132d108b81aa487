"""The objectives beside the collators of transformers."""

import numpy as np
import pytest

from flax_transformer.data.text import MLMMasking, Packed
from flax_transformer.data.text.batch import ragged

pytestmark = pytest.mark.parity
transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tokenizer():
    import tokenizers

    names = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"w{k}" for k in range(95))]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: k for k, name in enumerate(names)}, "[UNK]"))
    marks = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "CLS", "SEP", "MASK", "UNK")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **marks)


def outcome(before, after, chosen, mask):
    """Shares of chosen tokens, and among them of masked, changed and kept ones."""
    after, before = after[chosen], before[chosen]
    return np.array(
        [chosen.mean(), (after == mask).mean(), ((after != mask) & (after != before)).mean(), (after == before).mean()]
    )


def test_masking_has_the_proportions_of_transformers(tokenizer):
    rows = np.random.default_rng(0).integers(5, 100, (600, 100))
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15, seed=0)
    batch = theirs([{"input_ids": row.tolist()} for row in rows])
    labels, tokens = batch["labels"].numpy(), batch["input_ids"].numpy()
    expected = outcome(rows, tokens, labels != -100, tokenizer.mask_token_id)

    objective = MLMMasking(vocab_size=100, mask=tokenizer.mask_token_id, special=tuple(tokenizer.all_special_ids))
    rng = np.random.default_rng(1)
    ours = [objective({"tokens": row}, rng) for row in rows]
    found = outcome(
        rows,
        np.stack([example["tokens"] for example in ours]),
        np.stack([example["weights"] for example in ours]) == 1,
        tokenizer.mask_token_id,
    )
    # 9,000 of 60,000 tokens are chosen; five standard deviations of the difference of two samples
    deviation = np.sqrt([0.15 * 0.85 / 60_000, 0.8 * 0.2 / 9_000, 0.1 * 0.9 / 9_000, 0.1 * 0.9 / 9_000])
    np.testing.assert_array_less(np.abs(found - expected), 5 * np.sqrt(2) * deviation)


def test_packing_agrees_with_the_flattening_collator():
    documents = [[5, 6, 7, 8], [9], [10, 11], [12, 13, 14]]
    batch = transformers.DataCollatorWithFlattening(return_tensors="np")([{"input_ids": row} for row in documents])
    total = sum(map(len, documents))
    row = Packed(documents=ragged(documents), length=total)[0]
    np.testing.assert_array_equal(row["tokens"], batch["input_ids"][0])
    np.testing.assert_array_equal(row["positions"], batch["position_ids"][0])
    # theirs are not yet shifted: the label of place i is the token they have at i + 1
    shifted = np.append(batch["labels"][0][1:], -100)
    np.testing.assert_array_equal(np.where(row["weights"] == 1, row["labels"], -100), shifted)
