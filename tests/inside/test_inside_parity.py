"""Interventions are those of hooks on the torch model; attributions are Captum's on the same weights."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.inside import (
    Add,
    Scale,
    gradient_times_input,
    integrated_gradients,
    intervene,
    occlusion,
    patch_each,
    shapley_values,
    starting_at,
)
from flax_transformer.ops import capture

pytestmark = [pytest.mark.parity, pytest.mark.proves("inside", "against hooks in torch and against Captum")]
TOKENS = np.array([[3, 14, 1, 5, 9, 26], [5, 3, 5, 8, 9, 7]])


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=16, n_embd=24, n_layer=3, n_head=4, initializer_range=0.2,
        attn_implementation="eager", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    folder = tmp_path_factory.mktemp("gpt2")
    theirs.save_pretrained(folder)
    return torch, theirs, hub.load(folder).model


def run(model, tokens):
    return model(tokens)


def hooked(torch, theirs, module, hook):
    """Return the logits of the torch model with a hook that changes what a module is given."""
    handle = module.register_forward_pre_hook(hook)
    with torch.no_grad():
        found = theirs(torch.tensor(TOKENS)).logits.numpy()
    handle.remove()
    return found


def test_heads_switched_off_are_those_of_a_hook(both):
    torch, theirs, ours = both

    def hook(module, given):
        heads = given[0].reshape(*given[0].shape[:-1], 4, 6).clone()
        heads[..., [1, 3], :] = 0
        return (heads.reshape(given[0].shape),)

    expected = hooked(torch, theirs, theirs.transformer.h[1].attn.c_proj, hook)
    factor = jnp.ones((3, 1, 1, 4, 1)).at[1, 0, 0, jnp.array([1, 3])].set(0)
    found = jax.jit(intervene(run))({"head_outputs": Scale(factor)}, ours, TOKENS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_neurons_and_the_residual_stream_are_edited_as_by_a_hook(both):
    torch, theirs, ours = both
    expected = hooked(torch, theirs, theirs.transformer.h[2].mlp.c_proj, lambda m, x: (x[0] * (torch.arange(96) != 5),))
    found = intervene(run)({"neurons": Scale(jnp.ones((3, 1, 1, 96)).at[2, 0, 0, 5].set(0))}, ours, TOKENS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    steer = np.linspace(-1, 1, 24, dtype=np.float32)
    expected = hooked(torch, theirs, theirs.transformer.h[1], lambda m, x: (x[0] + torch.tensor(steer), *x[1:]))
    found = intervene(run)({"hidden_states": Add(jnp.zeros((3, 1, 1, 24)).at[1].set(steer))}, ours, TOKENS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_patching_is_that_of_a_hook(both):
    torch, theirs, ours = both
    other = TOKENS[::-1].copy()
    with torch.no_grad():
        states = theirs(torch.tensor(other), output_hidden_states=True).hidden_states

    def hook(module, given):
        x = given[0].clone()
        x[:, 3] = states[2][:, 3]
        return (x, *given[1:])

    expected = hooked(torch, theirs, theirs.transformer.h[2], hook)
    chosen, found = patch_each(run, "hidden_states", (ours, other), (ours, TOKENS), axis=-2)
    np.testing.assert_allclose(found[chosen.index((2, 3))], expected, atol=1e-5)


@pytest.fixture(scope="module")
def functions(both):
    """The logit of a token as a function of embeddings, theirs and ours, and the embeddings."""
    torch, theirs, ours = both
    tokens = TOKENS[:1]
    (embedded,) = capture(run, "token_embedding")(ours, tokens)[1]
    f = jax.jit(lambda x: starting_at(run, "token_embedding")(x, ours, tokens)[0, -1, 7])

    def g(x):
        return theirs(inputs_embeds=x).logits[:, -1, 7]

    return torch, f, g, embedded, torch.tensor(np.array(embedded), requires_grad=True)


GROUPS = np.arange(6)[None, :, None]


def test_integrated_gradients_are_those_of_torch_by_hand(functions):
    torch, f, g, x, theirs = functions
    points, weights = np.polynomial.legendre.leggauss(50)
    total = 0
    for point, weight in zip((1 + points) / 2, weights / 2, strict=True):
        at = (point * theirs.detach()).float().requires_grad_()
        total = total + weight * torch.autograd.grad(g(at).sum(), at)[0]
    expected = (theirs * total).detach().numpy()
    np.testing.assert_allclose(integrated_gradients(f, x).values, expected, atol=1e-4)


def test_attributions_are_captums(functions):
    captum = pytest.importorskip("captum.attr")
    torch, f, g, x, theirs = functions
    mask = torch.tensor(np.broadcast_to(GROUPS, x.shape).copy())
    grouped = {"feature_mask": mask, "baselines": 0.0}
    np.testing.assert_allclose(
        gradient_times_input(f, x), captum.InputXGradient(g).attribute(theirs).detach(), atol=1e-4
    )
    found = captum.IntegratedGradients(g).attribute(theirs, n_steps=50, method="gausslegendre")
    np.testing.assert_allclose(integrated_gradients(f, x).values, found.detach(), atol=1e-4)
    found = captum.FeatureAblation(g).attribute(theirs, **grouped)[0, :, 0]
    np.testing.assert_allclose(occlusion(f, x, GROUPS, count=6), found.detach(), atol=1e-4)
    orders = [np.random.default_rng(i).permutation(6) for i in range(5)]
    sampling = captum.ShapleyValueSampling(g)
    sampling.permutation_generator = lambda count, samples: map(tuple, (order.tolist() for order in orders))
    found = sampling.attribute(theirs, n_samples=5, **grouped)[0, :, 0]
    ours = shapley_values(f, x, GROUPS, np.array(orders))
    np.testing.assert_allclose(ours, found.detach(), atol=1e-4)


def test_capture_of_an_intervention_is_what_torch_sees(both):
    torch, theirs, ours = both
    seen = []
    keep = theirs.transformer.h[2].register_forward_pre_hook(lambda module, given: seen.append(given[0].numpy()))
    hooked(torch, theirs, theirs.transformer.h[0].mlp.c_proj, lambda m, x: (x[0] * 0,))
    keep.remove()
    edits = {"neurons": Scale(jnp.ones((3, 1, 1, 1)).at[0].set(0))}
    (found,) = capture(partial(intervene(run), edits), "hidden_states")(ours, TOKENS)[1]
    np.testing.assert_allclose(found[2], seen[0], atol=1e-5)
