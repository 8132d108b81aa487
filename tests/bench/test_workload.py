"""Models that this package does not know are measured by what they say of themselves."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.bench.workload import Size, from_config
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.models.protocol import Described
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.qwen3_moe import qwen3_30b_a3b
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block
from flax_transformer.objective import LabelLoss, TokenLoss
from flax_transformer.ops.dropless import block_count, block_size

D, PATCH, SIDE = 16, 4, 12
PLACES = (SIDE // PATCH) ** 2


@dataclass(frozen=True, kw_only=True)
class PatchesConfig:
    """An encoder of images [B, H, W, 3] by their patches alone."""

    width: int = D

    def build(self, rngs):
        return Patches(self, rngs=rngs)


class Patches(nnx.Module):
    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config, rows, length=None):
        return {"inputs": {"images": np.ones((rows, SIDE, SIDE, 3), np.float32)}}

    @classmethod
    def describe_batch(cls, config, batch):
        rows, height, width, _ = batch["inputs"]["images"].shape
        return Described({"rows": rows, "height": height, "width": width}, rows, "images")

    def __init__(self, cfg: PatchesConfig, *, rngs):
        self.stem = nnx.Conv(3, cfg.width, (PATCH, PATCH), (PATCH, PATCH), rngs=rngs)

    def __call__(self, images, *, mask=None, key=None):
        return self.stem(images).reshape(len(images), PLACES, -1)

    hidden_states = __call__

    def memory_mask(self, mask):
        return mask


STEM = 2 * 2 * PLACES * PATCH**2 * 3 * D
CAPTIONER = Seq2SeqConfig(
    embedding=EmbeddingConfig(vocab=20, embed=D),
    encoder=PatchesConfig(),
    decoder=TrunkConfig(block=transformer_block(embed=D, heads=2, inner=24, cross=True), depth=1),
)


def test_a_classifier_of_pictures_is_fed_and_trained():
    config = ClassifierConfig(backbone=PatchesConfig(), head=HeadConfig(embed=D, outputs=5, pool="first"))
    work = from_config("pictures", config, Size(batch=2))
    assert (work.shape, work.items, work.unit) == ({"rows": 2, "height": SIDE, "width": SIDE}, 2, "images")
    assert work.programs == ("forward", "train")
    assert work.objective == LabelLoss()
    assert sorted(work.batch["labels"]) == [0, 1]
    head = 2 * 2 * D * 5
    flops = work.facts(work.programs).flops
    assert flops["forward"].model == STEM + head
    assert flops["train"].model == 2 * STEM + 3 * head  # no gradient goes to images


def test_an_encoder_of_pictures_has_a_forward_pass_alone():
    work = from_config("pictures", PatchesConfig(), Size(batch=2))
    assert work.programs == ("forward",)
    assert work.facts(work.programs).flops["forward"].model == STEM


@pytest.mark.rotates
def test_a_captioner_is_measured_as_any_encoder_decoder_is():
    work = from_config("captions", CAPTIONER, Size(batch=2, length=6))
    assert (work.shape, work.items, work.unit) == ({"rows": 2, "target": 6, "vocab": 20}, 12, "tokens")
    assert isinstance(work.objective, TokenLoss)
    flops = work.facts(work.programs).flops
    assert list(flops) == ["forward", "train", "decode"]
    assert flops["decode"].model >= flops["forward"].model > STEM
    assert jax.eval_shape(work.decode, work.state.model, work.batch).tokens.shape == (2, 1, 6)


def test_documents_are_for_models_that_continue():
    assert from_config("gpt2", gpt2_tiny(), Size(length=8, documents=2)).batch["inputs"]["segments"].max() == 2
    with pytest.raises(ValueError, match="decoder-only models alone, captions is none"):
        from_config("captions", CAPTIONER, Size(documents=2))


def test_a_model_that_does_not_say_how_it_is_fed_is_refused():
    with pytest.raises(ValueError, match=r"mine must be a model that says by example_batch how it is fed"):
        from_config("mine", jnp.float32(1), Size())


def test_experts_take_as_many_tokens_as_is_said():
    """With a capacity of their even share they compute that, without one all blocks that the tokens may fill."""
    dropless, some = (
        from_config("qwen", qwen3_30b_a3b(), Size(batch=1, length=512, capacity=capacity)).facts(("forward",))
        for capacity in (None, 1.0)
    )
    size = block_size(512, 8, 128)
    places = size * block_count(512 * 8, 128, size)
    more = 48 * 2 * 3 * 2048 * 768 * (places - 512 * 8)
    assert dropless.flops["forward"].model - some.flops["forward"].model == pytest.approx(more, rel=0.01)
    with pytest.raises(ValueError, match=r"a capacity is of experts, CausalConfig has none, got 1\.0"):
        from_config("gpt2", gpt2_tiny(), Size(capacity=1.0))
