"""The model that learns from views: whose statistics its projector takes, what is exported, and that eight devices
train as one does.
"""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx

from flax_transformer import hub
from flax_transformer.models.vision.view_encoder import BatchStandardise, Projector, ProjectorConfig
from flax_transformer.objective.view_contrast import made_keys
from tests.objective import eight_views

MODEL = eight_views.MODEL
DRAW = np.random.default_rng(0)


def test_statistics_are_of_the_batch_and_of_rows_that_are_there():
    x = DRAW.normal(size=(6, 2, 3)).astype(np.float32)
    real = np.array([1, 1, 0, 1, 1, 0], bool)
    there = x[real]
    expected = (x - there.mean(0)) / np.sqrt(there.var(0) + 1e-5)
    np.testing.assert_allclose(BatchStandardise(3)(jnp.array(x), jnp.array(real)), expected, atol=1e-5)
    x = jnp.array(x)
    parts = BatchStandardise(3, groups=2, affine=False)(x)
    for rows in (slice(0, 3), slice(3, 6)):
        np.testing.assert_allclose(parts[rows], BatchStandardise(3)(x[rows]), atol=1e-5)
    with pytest.raises(ValueError, match="groups must have equal parts of the batch, got 6 rows in 4 groups"):
        BatchStandardise(3, groups=4)(x)


def test_a_projector_is_torchs():
    torch = pytest.importorskip("torch")
    cfg = ProjectorConfig(embed=5, outputs=4, hidden=6, layers=3, last_norm=True)
    ours = Projector(cfg, rngs=nnx.Rngs(0))
    layers = []
    for number in (1, 2, 3):
        kernel = np.asarray(getattr(ours, f"layer{number}").kernel[...])
        linear = torch.nn.Linear(*kernel.shape, bias=False)
        linear.weight.data = torch.tensor(kernel.T)
        layers += [linear, torch.nn.BatchNorm1d(kernel.shape[1], affine=number < 3)]
        layers += [torch.nn.ReLU()] if number < 3 else []
    x = DRAW.normal(size=(8, 5)).astype(np.float32)
    theirs = torch.nn.Sequential(*layers)(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours(jnp.array(x)), theirs, atol=2e-5)


def test_prototypes_give_cosines():
    cfg = ProjectorConfig(embed=5, outputs=4, hidden=6, norm="none", prototypes=7)
    ours = Projector(cfg, rngs=nnx.Rngs(0))
    found = ours(jnp.array(DRAW.normal(size=(8, 5)), jnp.float32))
    assert found.shape == (8, 7)
    assert np.abs(found).max() <= 1 + 1e-6


def changed_keys(order):
    """Return which keys another image of row 0 changes: those that were made with its statistics."""
    model = MODEL.build(nnx.Rngs(0))
    views = jnp.array(eight_views.IMAGES[:, None])
    other = views.at[0].set(-views[0])
    real = jnp.ones(len(views), bool)
    one, two = (made_keys(model, each, real, order, None) for each in (views, other))
    return set(np.flatnonzero(np.abs(one - two).max(1) > 1e-6).tolist())


@pytest.mark.rotates
def test_a_query_and_its_key_share_statistics_unless_keys_are_shuffled():
    """Of two groups of eight rows: unshuffled, the keys of row 0's group are made with its statistics, as its queries
    are, so that the group of a key could be told by them; shuffled, they are those of others."""
    own = set(range(8))
    assert changed_keys(None) == own
    order = jax.random.permutation(jax.random.key(0), 16)
    place = int(jnp.argsort(order)[0]) // 8 * 8
    together = set(np.asarray(order)[place : place + 8].tolist())
    assert changed_keys(order) == together
    assert together != own


def test_the_encoder_alone_is_exported_and_gives_its_vectors(tmp_path):
    model = MODEL.build(nnx.Rngs(0))
    images = jnp.array(eight_views.IMAGES[:2])
    hub.save(hub.wrap(model.exported(), "ViTModel"), tmp_path)
    found = hub.load(tmp_path)(pixel_values=jnp.moveaxis(images, -1, 1)).last_hidden_state
    np.testing.assert_allclose(found, model.hidden_states(images), atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parity
def test_transformers_opens_the_export(tmp_path):
    import torch
    from transformers import ViTModel

    model = MODEL.build(nnx.Rngs(0))
    images = eight_views.IMAGES[:2]
    hub.save(hub.wrap(model.exported(), "ViTModel"), tmp_path)
    theirs = ViTModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    with torch.no_grad():
        found = theirs(torch.tensor(images.transpose(0, 3, 1, 2))).last_hidden_state.numpy()
    np.testing.assert_allclose(found, model.hidden_states(jnp.array(images)), atol=2e-5)


@pytest.mark.rotates
@pytest.mark.proves("learning without labels", "steps with queue, teacher and views, eight devices as one")
def test_eight_devices_learn_as_one():
    for name, errors in on_eight(Path(eight_views.__file__))[0].items():
        assert max(errors.values()) <= 2e-5, (name, errors)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="a predictor is on top of the projector, of width 16, got 5"):
        replace(MODEL, predictor=ProjectorConfig(embed=5, outputs=16))
    with pytest.raises(ValueError, match="both projectors must have one width, got 16 and 5"):
        replace(MODEL, patch_projector=ProjectorConfig(embed=16, outputs=5))
