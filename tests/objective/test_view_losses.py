"""Losses of views against formulas written by hand in NumPy and torch, and what teachers, queues and centres become."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import (
    BYOLLoss,
    DINOLoss,
    IBOTLoss,
    MAELoss,
    MoCoLoss,
    MoCoV3Loss,
    Momentum,
    PatchOrderLoss,
    RelativePositionLoss,
    RotationLoss,
    SimCLRLoss,
    Views,
)
from flax_transformer.objective.pixel import patch_pixels
from flax_transformer.objective.pretext import NEIGHBOURS, ORDERS
from flax_transformer.objective.views import row_keys

DRAW = np.random.default_rng(0)
REAL = np.array([1, 1, 1, 0, 1], bool)
B, E = len(REAL), 4


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def vectors(*shape):
    return unit(DRAW.normal(size=(*shape, E))).astype(np.float32)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def close(one, two):
    np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6)


@pytest.mark.proves("learning without labels", "NT-Xent, InfoNCE, BYOL, DINO, iBOT beside formulas by hand")
def test_nt_xent_is_the_papers():
    """Of 2N views each is told from the 2N - 1 others (Chen et al. 2020, algorithm 1), written as lightly has it."""
    z = vectors(B, 2)
    total, metrics = SimCLRLoss(temperature=0.5).over(jnp.array(z), jnp.array(REAL))
    there = z[REAL]
    flat, n = there.transpose(1, 0, 2).reshape(-1, E), len(there)
    scores = flat @ flat.T / 0.5
    np.fill_diagonal(scores, -np.inf)
    partner = np.r_[np.arange(n, 2 * n), np.arange(n)]
    losses = -log_softmax(scores)[np.arange(2 * n), partner]
    close(total / metrics["count"], losses.mean())
    close(metrics["accuracy"] / metrics["count"], (scores.argmax(1) == partner).mean())


def test_info_nce_has_the_queue_for_negatives():
    """As MoCo's code has it: the positive first, then the queue (He et al. 2020, algorithm 1)."""
    torch = pytest.importorskip("torch")
    q, k, queue = vectors(B), vectors(B), vectors(7)
    total, metrics = MoCoLoss(queue=7, temperature=0.2).over(*map(jnp.array, (q, k, queue, REAL)))
    tq, tk, tqueue = (torch.tensor(each[REAL] if len(each) == B else each) for each in (q, k, queue))
    logits = torch.cat([torch.einsum("nc,nc->n", tq, tk)[:, None], torch.einsum("nc,kc->nk", tq, tqueue)], 1) / 0.2
    expected = torch.nn.functional.cross_entropy(logits, torch.zeros(len(tq), dtype=torch.long), reduction="sum")
    close(total, expected.numpy())
    assert metrics["accuracy"] == int((logits.argmax(1) == 0).sum())


def test_moco_v3_is_the_papers():
    q, k = vectors(B, 2), vectors(B, 2)
    total, metrics = MoCoV3Loss(temperature=0.3).over(*map(jnp.array, (q, k, REAL)))
    q, k = q[REAL], k[REAL]
    both = [-np.diag(log_softmax(q[:, i] @ k[:, 1 - i].T / 0.3)).mean() * 2 * 0.3 for i in (0, 1)]
    close(total / metrics["count"], sum(both))


def test_byol_is_the_papers():
    p, z = (DRAW.normal(size=(B, 2, E)).astype(np.float32) for _ in range(2))
    total, metrics = BYOLLoss().over(*map(jnp.array, (p, z, REAL)))
    expected = sum(np.square(unit(p[:, i]) - unit(z[:, 1 - i])).sum(-1) for i in (0, 1))[REAL].mean()
    close(total / metrics["count"], expected)


def test_dino_is_the_papers_with_centring_and_sharpening():
    """The double loop of its code: every teacher's view with every student's but the same."""
    student, teacher = DRAW.normal(size=(B, 5, E)), DRAW.normal(size=(B, 2, E))
    centre = DRAW.normal(size=E)
    loss = DINOLoss(views=Views(local=3), temperature=0.1, teacher_temperature=0.05)
    total, metrics = loss.over(
        *(jnp.float32(x) for x in (student, teacher, centre)), jnp.zeros((), jnp.int32), jnp.array(REAL)
    )
    terms = [
        -(np.exp(log_softmax((teacher[:, t] - centre) / 0.05)) * log_softmax(student[:, s] / 0.1)).sum(-1)
        for t in range(2) for s in range(5) if s != t
    ]  # fmt: skip
    close(total / metrics["count"], np.mean(terms, axis=0)[REAL].mean())


def test_ibot_compares_masked_patches_alone():
    student, teacher, centre = DRAW.normal(size=(B, 2, 6, E)), DRAW.normal(size=(B, 2, 6, E)), DRAW.normal(size=E)
    masks = DRAW.random((B, 2, 6)) < 0.4
    masks[0, 1] = False
    total = IBOTLoss().over_patches(
        *(jnp.float32(x) for x in (student, teacher, centre)),
        jnp.zeros((), jnp.int32),
        jnp.array(masks),
        jnp.array(REAL),
    )
    losses = -(np.exp(log_softmax((teacher - centre) / 0.04)) * log_softmax(student / 0.1)).sum(-1)
    per = (losses * masks).sum(-1) / np.maximum(masks.sum(-1), 1)
    close(total, per.mean(1)[REAL].sum())


@pytest.mark.parity
@pytest.mark.proves("vit_mae", "parity", "the loss, with pixels normalised and without")
def test_the_loss_of_masked_autoencoders_is_that_of_transformers():
    import torch
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    for normalise in (True, False):
        config = ViTMAEConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4,
            decoder_hidden_size=8, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
            decoder_intermediate_size=8, norm_pix_loss=normalise,
        )  # fmt: skip
        theirs = ViTMAEForPreTraining(config).eval()
        images = DRAW.normal(size=(3, 8, 8, 3)).astype(np.float32)
        noise = torch.tensor(DRAW.random((3, 4)).astype(np.float32))
        with torch.no_grad():
            output = theirs(torch.tensor(images.transpose(0, 3, 1, 2)), noise=noise)
        truth = patch_pixels(jnp.array(images), (4, 4))
        masked = jnp.array(output.mask.numpy() > 0)
        total, metrics = MAELoss(normalise=normalise).over(jnp.array(output.logits.numpy()), truth, masked, jnp.ones(3))
        close(total / metrics["count"], output.loss.numpy())


def test_momentum_rises_to_one_and_the_teacher_follows():
    momentum = Momentum(start=0.9, steps=10)
    close([momentum.at(jnp.int32(step)) for step in (0, 5, 10, 20)], [0.9, 0.95, 1.0, 1.0])
    before, now = ({"w": jnp.full(2, float(each)), "n": jnp.int32(each)} for each in (0, 1))
    teacher = Momentum(start=0.75).averaged(before, now, jnp.int32(0))
    assert teacher["n"] == 1
    close(teacher["w"], [0.25, 0.25])


class Given:
    """A model whose hidden states are means of its images, one token; everything else a linear map."""

    width = E

    def __init__(self, w):
        self.w = w

    def hidden_states(self, images, masked=None, key=None):
        return images.mean((1, 2))[:, None, :]

    def features(self, hidden):
        return hidden[..., 0, :]

    def project(self, x, real=None):
        return x @ self.w

    predict = project_patches = lambda self, x, real=None: x


jax.tree_util.register_pytree_node(Given, lambda m: ((m.w,), None), lambda _, leaves: Given(*leaves))
IMAGES = {"inputs": {"images": DRAW.normal(size=(B, 4, 4, 3)).astype(np.float32)}, "weights": REAL.astype(np.float32)}
MODEL = Given(jnp.array(DRAW.normal(size=(3, E)), jnp.float32))


@pytest.mark.rotates
def test_a_queue_is_first_in_first_out():
    loss = MoCoLoss(queue=12)
    carried = loss.carry.begin(MODEL, jax.random.key(1))
    keys = unit(np.asarray(loss.crops(IMAGES, None)[0][:, 1].mean((1, 2)) @ MODEL.w))
    _, _, after = loss(MODEL, IMAGES, carried=carried)
    close(after["queue"], np.concatenate([keys, carried["queue"][:7]]))
    close(np.linalg.norm(carried["queue"], axis=1), 1.0)


@pytest.mark.rotates
def test_the_mean_of_scores_moves_once_a_step_by_all_rows_of_the_batch():
    loss = DINOLoss(centre_momentum=0.9)
    carried = loss.carry.begin(MODEL, jax.random.key(1))
    for rows in (slice(0, 2), slice(2, 5)):
        part = jax.tree.map(lambda leaf, rows=rows: leaf[rows], IMAGES)
        carried = loss(MODEL, part, carried=carried)[2]
        close(carried["centre"], 0.0)
    centre = loss.carry.after(MODEL, carried)["centre"]
    scores = np.asarray(loss.crops(IMAGES, None)[0].mean((1, 2, 3)) @ MODEL.w)
    close(centre, 0.1 * scores[REAL].mean(0))
    assert float(loss.carry.after(MODEL, carried)["rows"]) == 0


def test_the_teacher_is_what_dino_ends_with():
    assert DINOLoss().carry.whole("student", {"teacher": "teacher"}) == "teacher"
    assert BYOLLoss().carry.whole("student", {"teacher": "teacher"}) == "student"


def test_quarters_are_put_in_the_order_that_is_asked():
    images = jnp.arange(4.0).reshape(1, 2, 2, 1).repeat(6, 0).repeat(2, 1).repeat(2, 2)
    shown, answers = PatchOrderLoss().ask(images, jax.random.split(jax.random.key(0), 6))
    assert shown[:, ::2, ::2, 0].reshape(6, 4).astype(int).tolist() == ORDERS[answers].tolist()
    assert len(set(answers.tolist())) > 1
    assert len(ORDERS) == 24
    gapped, same = PatchOrderLoss(gap=1).ask(images + 1, jax.random.split(jax.random.key(0), 6))
    assert same.tolist() == answers.tolist()
    assert (np.asarray(gapped) > 0).sum((1, 2, 3)).tolist() == [4] * 6


def test_the_square_beside_the_middle_is_the_one_that_is_asked():
    cells = jnp.arange(9.0).reshape(3, 3).repeat(4, 0).repeat(4, 1)
    images = jnp.broadcast_to(cells[None, :, :, None], (20, 12, 12, 1))
    shown, answers = RelativePositionLoss(gap=0).ask(images, jax.random.split(jax.random.key(1), 20))
    assert shown.shape == (20, 4, 8, 1)
    assert (shown[:, :, :4] == 4).all()
    rows, columns = NEIGHBOURS[answers].T
    assert (np.asarray(shown[:, 0, 4, 0]) == 3 * rows + columns).all()


def test_images_are_turned_by_four_quarters():
    images = jnp.array(DRAW.normal(size=(2, 4, 4, 1)))
    shown, answers = RotationLoss().ask(images, None)
    assert answers.tolist() == [0, 1, 2, 3] * 2
    np.testing.assert_array_equal(shown[6], np.rot90(images[1], 2))


def test_a_held_out_image_is_asked_the_same_in_any_batch():
    images = jnp.array(DRAW.normal(size=(4, 4, 4, 1)), jnp.float32)
    whole = jax.random.key_data(row_keys(images, None))
    np.testing.assert_array_equal(whole[::-1], jax.random.key_data(row_keys(images[::-1], None)))
    assert len({tuple(each) for each in np.asarray(whole).tolist()}) == 4


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SimCLRLoss(views=Views(count=1)), "SimCLRLoss compares at least 2 views of an image, got 1"),
        (lambda: BYOLLoss(views=Views(local=1)), "BYOLLoss compares 2 large crops of an image, got 2 and 1 small ones"),
        (lambda: Views(count=0), "views are at least 1 large crop"),
        (lambda: Views(area=(0.5, 1.5)), "area must be a positive range, of areas up to 1, got 0.5 to 1.5"),
        (lambda: Views(size=40).check(32, 32), r"crops must not be larger than images, got size=40, images of 32×32"),
        (
            lambda: MoCoLoss(queue=64).check(70, 8, (8, 8)),
            "got queue=64, 8 rows of 70",
        ),
        (lambda: MoCoLoss(queue=4).check(99, 8, (8, 8)), "a queue must hold a batch at least"),
        (lambda: SimCLRLoss().check(9, 1, (8, 8)), "which must have at least 2, got 1"),
        (lambda: SimCLRLoss(temperature=0.0), "temperature must be positive, got 0.0"),
        (lambda: PatchOrderLoss().check(9, 2, (9, 9)), "images must have quarters of whole pixels"),
        (lambda: RelativePositionLoss(gap=2).check(9, 2, (8, 8)), "images must have nine squares larger than the gaps"),
        (lambda: Momentum(start=1.5), r"momentum must be in \[0, 1\]"),
        (lambda: IBOTLoss(masked=(0.5, 0.1)), r"masked must be a range in \(0, 1\)"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
