"""The Siamese encoder: one tower for both halves, whose vectors are of a pool or of every position side by side."""

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.siamese import Siamese, SiameseConfig
from flax_transformer.models.vision.cct import cct
from flax_transformer.objective import ContrastiveLoss

STEM = cct(embed=8, heads=2, depth=1, inner=8, image=8, stem=(4,), pool=False)
HEADS = {"weighted": 6, "every": 3}


@pytest.fixture(scope="module", params=HEADS)
def model(request):
    tower = with_head(STEM, outputs=HEADS[request.param], pool=request.param, bias=False)
    return Siamese(SiameseConfig(tower=tower), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def images():
    return jax.random.normal(jax.random.key(0), (2, 3, 8, 8, 3))


def test_halves_are_vectors_of_length_1_of_one_width(model, images):
    width = {"weighted": 6, "every": 3 * 2 * 2}[model.cfg.tower.head.pool]  # 2 × 2 positions
    assert model.embed(images).shape == (2, 3, width)
    np.testing.assert_allclose(np.linalg.norm(model.embed(images), axis=-1), 1, rtol=1e-6)


def test_halves_that_change_sides_transpose_the_scores(model, images):
    scores, back = (
        model.output(model.hidden_states(images=one, others=other)) for one, other in (images, images[::-1])
    )
    np.testing.assert_allclose(scores, back.T, rtol=1e-5)
    np.testing.assert_allclose(np.diag(model.output(model.hidden_states(images=images[0], others=images[0]))), 1 / 0.07,
                               rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("model", ["every"], indirect=True)
def test_positions_are_compared_with_their_own(model, images):
    places = np.asarray(model.tower.head(model.tower.hidden_states(images)))
    found = np.einsum("bte,cte->bc", *places)  # a sum over positions, of halves as long as they are
    found /= np.outer(*np.sqrt((places**2).sum((-2, -1))))
    scores = model.output(model.hidden_states(images=images[0], others=images[1]))
    np.testing.assert_allclose(scores, found / 0.07, rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter(model, images):
    batch = {"inputs": {"images": images[0], "others": images[1]}}
    found = jax.grad(lambda model: ContrastiveLoss()(model, batch)[0])(model)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(nnx.state(found)))
