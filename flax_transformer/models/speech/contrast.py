"""wav2vec 2.0 as it is pretrained: masked positions are told by their quantised features from those of others
(Baevski et al. 2020, https://arxiv.org/abs/2006.11477).

Axes: B batch, T samples, S positions, C width of the convolutions, D width, G groups of codes, V codes of a group,
W width of a code, E width of what is compared, N distractors.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.protocol import Described
from flax_transformer.models.speech.wav2vec2 import Wav2Vec2, Wav2Vec2Config
from flax_transformer.nn.config import check_at_least, check_fields, check_rates
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, dropout, widen
from flax_transformer.ops.norm import unit
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


class Contrast(NamedTuple):
    """What positions are predicted to be, and what they are."""

    predicted: Float[Array, "*B S E"]
    quantised: Float[Array, "*B S E"]
    perplexity: Float[Array, ""]
    """Of the codes that are chosen, over all groups: how many are in use."""
    hidden: Float[Array, "*B S D"]


@frozen
class ContrastConfig:
    """An encoder of samples and a code book for what its convolutions give."""

    backbone: Wav2Vec2Config
    """The encoder."""
    groups: int = 2
    """G."""
    codes: int = 320
    """V, of each group."""
    code_width: int = 256
    """W of all groups together."""
    outputs: int = 256
    """E."""
    dropout: float = 0.0
    """Of the features that are quantised."""
    temperature: float = 0.1
    """What cosines are divided by."""
    choice_temperature: float = 2.0
    """Of the Gumbel softmax that chooses codes in training."""
    diversity: float = 0.1
    """Weight of the loss of codes that are not used, by which who trains adds it to the other of `losses`."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "groups", "codes", "code_width", "outputs")
        check_at_least(self, 0, "diversity")
        check_rates(self, "dropout")
        if self.code_width % self.groups:
            raise ValueError(f"groups must divide code_width, got {self.groups} and {self.code_width}")
        if not (self.temperature > 0 and self.choice_temperature > 0):
            raise ValueError(f"temperatures must be above 0, got {self.temperature} and {self.choice_temperature}")

    def build(self, rngs: nnx.Rngs) -> "ContrastModel":
        """Make the model."""
        return ContrastModel(self, rngs=rngs)


class ContrastModel(Module):
    """An encoder that is pretrained by telling what was masked."""

    layer_order = (Part("backbone"), "choose", "codes", "project_hidden", "project_codes")

    use = "contrastive-pretraining"

    @classmethod
    def example_batch(cls, config: ContrastConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B recordings of S positions each."""
        return Wav2Vec2.example_batch(config.backbone, rows, length)

    @classmethod
    def describe_batch(cls, config: ContrastConfig, batch: dict[str, Any]) -> Described:
        """Count B recordings."""
        return Wav2Vec2.describe_batch(config.backbone, batch)

    def __init__(self, cfg: ContrastConfig, *, rngs: nnx.Rngs):
        kinds = cfg.backbone.front.precision.dtypes
        self.cfg = cfg
        self.backbone = cfg.backbone.build(rngs)
        self.choose = Linear(cfg.backbone.front.embed, cfg.groups * cfg.codes, rngs=rngs, **kinds)
        shape = cfg.groups * cfg.codes, cfg.code_width // cfg.groups
        codes = jax.random.uniform(rngs.params(), shape, kinds["param_dtype"])
        self.codes = nnx.Param(codes, out_sharding=(None, None), eager_sharding=False)
        self.project_hidden = Linear(cfg.backbone.block.embed, cfg.outputs, rngs=rngs, **kinds)
        self.project_codes = Linear(cfg.code_width, cfg.outputs, rngs=rngs, **kinds)

    def quantise(
        self,
        features: Float[Array, "*B S C"],
        masked: Bool[Array, "*#B S"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B S W"], Float[Array, ""]]:
        """Choose a code of each group for every position, and measure how many codes are in use.

        Args:
          masked: positions whose choices are measured; all by default.
          key: for Gumbel noise, with which gradients go to all codes; None: the best codes are chosen.
        """
        cfg = self.cfg
        scores = widen(self.choose(features)).reshape(*features.shape[:-1], cfg.groups, cfg.codes)
        if key is None:
            chosen = soft = jax.nn.one_hot(scores.argmax(-1), cfg.codes)
        else:
            noise = jax.random.gumbel(key, scores.shape)
            drawn = jax.nn.softmax((scores + noise) / cfg.choice_temperature)
            chosen = jax.nn.one_hot(drawn.argmax(-1), cfg.codes) + drawn - jax.lax.stop_gradient(drawn)
            soft = jax.nn.softmax(scores)
        codes = widen(self.codes[...]).reshape(cfg.groups, cfg.codes, -1)
        found = jnp.einsum("...gv,gvw->...gw", chosen, codes, precision="highest")
        shown = jnp.ones(soft.shape[:-2], bool) if masked is None else jnp.broadcast_to(masked, soft.shape[:-2])
        used = jnp.sum(soft, axis=range(soft.ndim - 2), where=shown[..., None, None]) / shown.sum()
        perplexity = jnp.exp(-jax.scipy.special.xlogy(used, used).sum(-1)).sum()
        return found.reshape(*features.shape[:-1], cfg.code_width).astype(features.dtype), perplexity

    def __call__(
        self,
        samples: Float[Array, "*B T"],
        *,
        mask: Mask | None = None,
        masked: Bool[Array, "*#B S"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Contrast:
        """Predict what masked positions are; arguments as the encoder's."""
        keys = split_keys(key, 3)
        features = self.backbone.features(samples)
        hidden = self.backbone.encode(features, mask=mask, masked=masked, key=keys[0])
        codes, perplexity = self.quantise(dropout(features, self.cfg.dropout, keys[1]), masked, keys[2])
        return Contrast(self.project_hidden(hidden), self.project_codes(codes), perplexity, hidden)

    def hidden_states(self, *inputs: Any, **named: Any) -> Float[Array, "*B S D"]:
        """Compute the encoder's hidden states; arguments as its own."""
        return self.backbone.hidden_states(*inputs, **named)

    def logits(self, found: Contrast, others: Int[Array, "B S N"]) -> Float[Array, "B S 1+N"]:
        """Score what every position is predicted to be with what it is, and with what others are.

        Those that are the same as the position itself score −∞.

        Args:
          others: positions to tell it from, counted through all rows of the batch.
        """
        right = widen(found.quantised)
        wrong = right.reshape(-1, right.shape[-1])[others]
        both = jnp.concatenate([right[..., None, :], wrong], axis=-2)
        scores = jnp.sum(unit(found.predicted)[..., None, :] * unit(both), axis=-1)
        same = (wrong == right[..., None, :]).all(-1)
        return jnp.where(jnp.pad(same, ((0, 0), (0, 0), (1, 0))), -jnp.inf, scores / self.cfg.temperature)

    def losses(
        self, found: Contrast, others: Int[Array, "B S N"], masked: Bool[Array, "B S"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Sum over masked positions the cross-entropy of telling each from others, and the loss of unused codes."""
        scores = jax.nn.log_softmax(self.logits(found, others))[..., 0]
        codes = self.cfg.groups * self.cfg.codes
        unused = (codes - found.perplexity) / codes * masked.sum()
        return -jnp.sum(scores, where=masked), unused
