"""Recurrent layers against torch's: outputs, last states and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.recurrent_layer import Recurrent, RecurrentConfig

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("recurrent", "parity", "layers: outputs, states and gradients of torch's"),
]

E, H = 5, 7
LENGTHS = [6, 3, 1]


def filled(stack, theirs):
    """Return our stack torch's parameters."""
    for number, cells in enumerate(stack.layers):
        for way, cell in enumerate(cells):
            for mine, its in (("input", "ih"), ("recurrent", "hh")):
                name = f"{its}_l{number}{'_reverse' * way}"
                part = getattr(cell, mine)
                part.kernel[...] = jnp.asarray(getattr(theirs, f"weight_{name}").detach().numpy().T)
                part.bias[...] = jnp.asarray(getattr(theirs, f"bias_{name}").detach().numpy())
    return stack


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(("depth", "both"), [(1, False), (1, True), (3, True)])
def test_outputs_states_and_gradients_are_torchs(cell, depth, both):
    torch.manual_seed(depth)
    theirs = getattr(torch.nn, cell.upper())(E, H, depth, bidirectional=both, batch_first=True)
    stack = filled(
        Recurrent(RecurrentConfig(embed=E, hidden=H, cell=cell, depth=depth, bidirectional=both), rngs=nnx.Rngs(0)),
        theirs,
    )
    x = torch.randn(len(LENGTHS), max(LENGTHS), E, requires_grad=True)
    weights = torch.randn(len(LENGTHS), max(LENGTHS), H * (1 + both))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True)
    packed, last = theirs(packed)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    last = last if cell == "lstm" else (last,)
    (torch.sin(out) * weights).sum().backward()

    def loss(stack, x):
        found, states = stack(x, jnp.array(LENGTHS))
        return (jnp.sin(found) * weights.numpy()).sum(), (found, states)

    given = jnp.asarray(x.detach().numpy())
    (_, (found, states)), (slopes, to_x) = jax.value_and_grad(loss, (0, 1), has_aux=True)(stack, given)
    np.testing.assert_allclose(found, out.detach().numpy(), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(to_x, x.grad.numpy(), atol=1e-5, rtol=1e-5)
    for number, state in enumerate(states):
        for mine, its in zip(state, last, strict=True):
            its = its.detach().numpy()[number * (1 + both) : (number + 1) * (1 + both)]
            np.testing.assert_allclose(mine, np.concatenate(list(its), axis=-1), atol=1e-5, rtol=1e-5)
    for number, cells in enumerate(slopes.layers):
        for way, part in enumerate(cells):
            for mine, its in (("input", "ih"), ("recurrent", "hh")):
                name, one = f"{its}_l{number}{'_reverse' * way}", getattr(part, mine)
                np.testing.assert_allclose(
                    one.kernel[...].T, getattr(theirs, f"weight_{name}").grad.numpy(), atol=1e-5, rtol=1e-5
                )
                np.testing.assert_allclose(
                    one.bias[...], getattr(theirs, f"bias_{name}").grad.numpy(), atol=1e-5, rtol=1e-5
                )
