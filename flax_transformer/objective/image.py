"""Losses of images that are made: of others, with a target or without, and of noise.

Axes: B images, H W height and width in pixels, C channels, P places that a discriminator judges.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.metric.structural_similarity import structural_similarity
from flax_transformer.objective.objective import Batch, Loss, Objective
from flax_transformer.ops import cross_entropy
from flax_transformer.ops.adversarial import (
    ADVERSARIAL_LOSSES,
    AdversarialLoss,
    AdversarialName,
    gradient_penalty,
    r1_penalty,
)
from flax_transformer.ops.differentiable_augment import CHANGES, differentiable_augment
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.train.game import Player, alternate
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.step import OwnStep


def absolute_error(one: Float[Array, "B *X"], other: Float[Array, "B *X"]) -> Float[Array, " B"]:
    """Compute the mean absolute difference of each row."""
    return jnp.abs(one - other).reshape(len(one), -1).mean(axis=1)


@frozen
class ImageLoss(Objective):
    """Sum the error of every image that is made of another.

    The error is |made - target|, averaged over pixels, and `similarity` times 1 - SSIM (Zhao et al. 2017,
    https://arxiv.org/abs/1511.08861). Labels are the images [B, H, W, C] that they should be, with values between -1
    and 1; reported are `l1` and, where it is part of the loss, `ssim`.
    """

    similarity: float = 0.0
    """Weight of 1 - SSIM."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "l1": "lower"}
    unit: ClassVar[str] = "images"

    def __post_init__(self):
        if self.similarity < 0:
            raise ValueError(f"similarity must not be negative, got {self.similarity}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch."""
        keys = split_keys(key)
        made = model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1])
        return self.of(made, batch["labels"], batch["weights"])

    def of(self, made: Float[Array, "B H W C"], target: Float[Array, "B H W C"], weights: Float[Array, " B"]) -> Loss:
        """Sum the loss of images that are made already."""
        made = made.astype(jnp.float32)
        l1 = absolute_error(made, target)
        total, metrics = jnp.sum(l1 * weights), {"count": jnp.sum(weights), "l1": jnp.sum(l1 * weights)}
        if self.similarity:
            ssim = jnp.sum(structural_similarity(made, target, span=2.0) * weights)
            total = total + self.similarity * (metrics["count"] - ssim)
            metrics["ssim"] = ssim
        return total, metrics


@frozen
class AdversarialObjective(Objective):
    """What a generator minimises against a discriminator, which is trained beside it by an optimizer of its own.

    The model has both as `generator` and `discriminator`. In a step the discriminator is updated first, then the
    generator; called, the objective gives the generator's loss.
    """

    loss: AdversarialName = "hinge"
    """What both minimise of the discriminator's numbers."""
    discriminator_rate: float = 1.0
    """The discriminator's learning rate, as a multiple of the generator's."""
    changes: tuple[str, ...] = ()
    """How images are changed before they are judged, real ones and generated alike: of `colour`, `translation` and
    `cutout`."""

    unit: ClassVar[str] = "images"

    def __post_init__(self):
        if self.discriminator_rate <= 0:
            raise ValueError(f"discriminator_rate must be positive, got {self.discriminator_rate}")
        if unknown := [name for name in self.changes if name not in CHANGES]:
            raise ValueError(f"changes must be of {', '.join(CHANGES)}, got {', '.join(unknown)}")

    @property
    def players_loss(self) -> AdversarialLoss:
        """The losses of both players."""
        return ADVERSARIAL_LOSSES[self.loss]

    def discriminator_loss(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum what the discriminator minimises over a batch."""
        raise NotImplementedError

    def own_step(self, optimizer: OptimizerConfig, steps: int) -> OwnStep:
        """Make the step of a run of `steps` steps, in which each player has an optimizer of this kind."""
        faster = replace(optimizer, learning_rate=optimizer.learning_rate * self.discriminator_rate)
        discriminator = Player("discriminator", self.discriminator_loss, make_optimizer(faster, steps))
        return alternate([discriminator, Player("generator", self, make_optimizer(optimizer, steps))])

    def changed(self, images: Array, key: jax.Array | None) -> Array:
        """Change images as they are changed before they are judged; without a key they stay as they are."""
        return differentiable_augment(images, key, self.changes) if self.changes and key is not None else images


def per_row(values: Float[Array, "B *P"]) -> Float[Array, " B"]:
    """Average what is said of the places of each row."""
    return values.reshape(len(values), -1).mean(axis=1)


@frozen
class PairedLoss(AdversarialObjective):
    """Translate images whose targets are known: the error of each, and what a discriminator says (Isola et al. 2017).

    The discriminator is given the image that the generator has seen, and its target or what the generator has made.
    """

    weight: float = 0.01
    """Of the discriminator in the generator's loss; pix2pix has 1 beside 100 times the error."""
    error: ImageLoss = ImageLoss()
    """What else the generator minimises."""

    better: ClassVar[Mapping[str, str]] = ImageLoss.better

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the generator's loss over a batch."""
        keys, images = split_keys(key, 3), batch["inputs"]["images"]
        made = _translated(model.generator, images, keys[0])
        total, metrics = self.error.of(made, batch["labels"], batch["weights"])
        judge = partial(self._judged, model, seen=images, keys=keys[1:])
        fooled = per_row(self.players_loss.fool(judge(made), lambda: judge(batch["labels"])))
        adversarial = jnp.sum(fooled * batch["weights"])
        return total + self.weight * adversarial, {**metrics, "adversarial": adversarial}

    def discriminator_loss(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the discriminator's loss over a batch."""
        keys, images, loss = split_keys(key, 5), batch["inputs"]["images"], self.players_loss
        made = jax.lax.stop_gradient(_translated(model.generator, images, keys[0]))
        real, fake = (
            self._judged(model, each, images, own) for each, own in ((batch["labels"], keys[1:3]), (made, keys[3:]))
        )
        return _halves(*loss.critic(real, fake), batch["weights"])

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum the error of what the generator makes."""
        loss, metrics = self.error(model.generator, batch)
        return {"loss": loss, **metrics}

    def _judged(self, model: Any, images: Array, seen: Array, keys: Any) -> Array:
        if getattr(model, "encoder", None) is not None:
            raise ValueError("pairs are judged by their pixels, got a model with an encoder for its discriminator")
        if not self.changes or keys[0] is None:
            return model.discriminator(images, seen, key=keys[1])
        return model.discriminator(self.changed(images, keys[0]), self.changed(seen, keys[0]), key=keys[1])


@frozen
class CycleLoss(AdversarialObjective):
    """Translate between two sets of images of which no pairs are known (CycleGAN, Zhu et al. 2017, §3).

    Generator and discriminator each have a `forward`, to the targets, and a `backward`. The generators' loss is what
    the discriminators say, `cycle` times the error of images that went there and back, and `cycle · identity` times
    that of images that were of the other set already.
    """

    loss: AdversarialName = "least-squares"
    """What both minimise of the discriminators' numbers."""
    cycle: float = 10.0
    """Weight of the images that went there and back."""
    identity: float = 0.5
    """Weight of images of the other set, as a multiple of `cycle`."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "cycle": "lower"}

    def __post_init__(self):
        super().__post_init__()
        if self.cycle <= 0 or self.identity < 0:
            raise ValueError(f"cycle must be positive, identity not negative, got {self.cycle} and {self.identity}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the generators' loss over a batch."""
        keys, weights = split_keys(key, 10), batch["weights"]
        totals = {"adversarial": 0.0, "cycle": 0.0, "identity": 0.0}
        for number, (there, back, judge, source, target) in enumerate(_ways(model, batch)):
            own = keys[5 * number : 5 * number + 5]
            made = _translated(there, source, own[0])
            judged = partial(self._judged, judge, keys=own[1:3])
            fooled = self.players_loss.fool(judged(made), partial(judged, target))
            totals["adversarial"] += jnp.sum(per_row(fooled) * weights)
            totals["cycle"] += jnp.sum(absolute_error(_translated(back, made, own[3]), source) * weights)
            same = absolute_error(_translated(there, target, own[4]), target) if self.identity else 0 * weights
            totals["identity"] += jnp.sum(same * weights)
        total = totals["adversarial"] + self.cycle * (totals["cycle"] + self.identity * totals["identity"])
        return total, {"count": jnp.sum(weights), **totals}

    def discriminator_loss(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the discriminators' loss over a batch."""
        keys, total, metrics = split_keys(key, 10), 0.0, {}
        for number, (there, _, judge, source, target) in enumerate(_ways(model, batch)):
            own = keys[5 * number : 5 * number + 5]
            made = jax.lax.stop_gradient(_translated(there, source, own[0]))
            real, fake = self._judged(judge, target, own[1:3]), self._judged(judge, made, own[3:5])
            each, metrics = _halves(*self.players_loss.critic(real, fake), batch["weights"])
            total += each
        return total, metrics

    def _judged(self, judge: Any, images: Array, keys: Any) -> Array:
        return judge(self.changed(images, keys[0]), key=keys[1])

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum the error of images that went there and back."""
        cycle = 0.0
        for there, back, _, source, _ in _ways(model, batch):
            made = _translated(back, _translated(there, source, None), None)
            cycle += jnp.sum(absolute_error(made, source) * batch["weights"])
        return {"loss": cycle, "cycle": cycle, "count": jnp.sum(batch["weights"])}


@frozen
class SampleLoss(AdversarialObjective):
    """Generate images of noise that a discriminator takes for real (Goodfellow et al. 2014).

    The generator makes images by `generator(noise, labels)`, noise as `generator.noise(key, rows)` draws it; the
    discriminator says how real they are by `discriminator(images, labels)`. Both are given the classes. Of a model with
    an `encoder`, which is not trained, the discriminator is given `encoder.stage_states(images)` in place of images.
    """

    separable: ClassVar[bool] = False  # noise is drawn for the rows of a whole batch

    penalty: Literal["none", "r1", "both", "gradient"] = "r1"
    """What bounds the discriminator's gradient in the images: its square at real ones (R1), at real and at generated
    ones (R1 and R2), or how far its norm is from 1 between real and generated ones (WGAN-GP)."""
    penalty_weight: float = 1.0
    """Of the penalty in the discriminator's loss."""
    penalty_every: int = 1
    """The penalty is that of every n-th row, for all of them: a cheaper estimate, whose weight stays."""
    auxiliary: float = 0.0
    """Weight, in both losses, of an auxiliary classifier that the discriminator has: it learns to tell real and
    generated images of every class apart, all in one softmax, and the generator to have its own taken for real ones of
    their class (ADC-GAN, Hou et al. 2022, https://arxiv.org/abs/2107.10060)."""

    def __post_init__(self):
        super().__post_init__()
        if self.auxiliary < 0:
            raise ValueError(f"auxiliary must not be negative, got {self.auxiliary}")
        if self.penalty_weight < 0 or self.penalty_every < 1:
            raise ValueError(
                "penalty_weight must not be negative, penalty_every at least 1, got "
                f"{self.penalty_weight} and {self.penalty_every}"
            )

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the generator's loss over a batch; without a key of the same noise every time."""
        keys, labels = jax.random.split(_drawn(key), 2), batch["labels"]
        made = model.generator(model.generator.noise(keys[0], len(labels)), labels)
        changing, weights = None if key is None else keys[1], batch["weights"]

        def judge(images: Array) -> tuple[Array, Array | None]:
            return self._logits(model, self.changed(images, changing), labels)

        said, classified = judge(made)
        fooled = per_row(self.players_loss.fool(said, lambda: judge(batch["inputs"]["images"])[0]))
        total, metrics = jnp.sum(fooled * weights), {"count": jnp.sum(weights)}
        if self.auxiliary:
            entropy = partial(_classified, classified, labels, weights)
            metrics["auxiliary"] = entropy(real=True) - entropy(real=False)
            total = total + self.auxiliary * metrics["auxiliary"]
        return total, metrics

    def discriminator_loss(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the discriminator's loss over a batch; without a key there is no penalty."""
        keys, labels, weights = jax.random.split(_drawn(key), 4), batch["labels"], batch["weights"]
        made = jax.lax.stop_gradient(model.generator(model.generator.noise(keys[0], len(labels)), labels))
        images, real_key, fake_key = batch["inputs"]["images"], keys[1], keys[2]
        if key is None:
            real_key = fake_key = None
        images, made = self.changed(images, real_key), self.changed(made, fake_key)

        (real, real_as), (fake, fake_as) = (self._logits(model, each, labels) for each in (images, made))
        total, metrics = _halves(*self.players_loss.critic(real, fake), weights, scale=1.0)
        if self.auxiliary:
            entropy = partial(_classified, labels=labels, weights=weights)
            metrics["auxiliary"] = entropy(real_as, real=True) + entropy(fake_as, real=False)
            total = total + self.auxiliary * metrics["auxiliary"]
        if key is not None and self.penalty != "none":
            n = self.penalty_every
            some = weights[::n]
            penalty = self._penalty(lambda x: self._logits(model, x, labels[::n])[0], images[::n], made[::n], keys[3])
            summed = jnp.sum(penalty * some) * jnp.sum(weights) / jnp.maximum(jnp.sum(some), 1)
            total, metrics = total + self.penalty_weight * summed, {**metrics, "penalty": summed}
        return total, metrics

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum what the discriminator minimises, of images as they are and of the same noise every time."""
        loss, metrics = self.discriminator_loss(model, batch)
        return {"loss": loss, **metrics}

    def _logits(self, model: Any, images: Array, labels: Array) -> tuple[Array, Array | None]:
        """Return what the discriminator says of images, and what its auxiliary classifier does."""
        encoder, discriminator = getattr(model, "encoder", None), model.discriminator
        seen = images if encoder is None else encoder.stage_states(images)
        if not self.auxiliary:
            return discriminator(seen, labels), None
        if not getattr(discriminator.cfg, "auxiliary", False):
            raise ValueError(
                f"a loss with an auxiliary classifier wants a discriminator that has one, got auxiliary="
                f"{self.auxiliary} and a {type(discriminator).__name__} without"
            )
        return discriminator.logits(seen, labels)

    def _penalty(self, critic: Callable[[Array], Array], real: Array, fake: Array, key: jax.Array) -> Array:
        if self.penalty == "gradient":
            return gradient_penalty(critic, real, fake, key)
        at_real = r1_penalty(critic, real)
        return at_real + r1_penalty(critic, fake) if self.penalty == "both" else at_real


def _classified(logits: Float[Array, "B 2E"], labels: Array, weights: Array, *, real: bool) -> Float[Array, ""]:
    """Sum the cross-entropy of rows' being real ones of their class, or generated ones of it."""
    return cross_entropy(logits, labels if real else labels + logits.shape[-1] // 2, weights)[0]


def _drawn(key: jax.Array | None) -> jax.Array:
    return jax.random.key(0) if key is None else key


def _translated(generator: Any, images: Array, key: jax.Array | None) -> Array:
    keys = split_keys(key)
    return generator.output(generator.hidden_states(images, key=keys[0]), key=keys[1]).astype(jnp.float32)


def _ways(model: Any, batch: Batch) -> tuple[tuple[Any, Any, Any, Array, Array], ...]:
    """Return, of both ways, the generator there and that back, the judge of what is made, source and target."""
    generator, judge, one, other = model.generator, model.discriminator, batch["inputs"]["images"], batch["labels"]
    return (
        (generator.forward, generator.backward, judge.forward, one, other),
        (generator.backward, generator.forward, judge.backward, other, one),
    )


def _halves(real: Array, fake: Array, weights: Array, scale: float = 0.5) -> Loss:
    """Sum both halves of a discriminator's loss, and report each."""
    parts = {name: jnp.sum(per_row(loss) * weights) for name, loss in (("real", real), ("fake", fake))}
    return scale * (parts["real"] + parts["fake"]), {"count": jnp.sum(weights), **parts}
