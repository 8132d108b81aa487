"""Run by test_embedded.py on eight CPU devices: calls and generation by embeddings, beside one device; prints JSON."""

import json
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer import hub
from flax_transformer.parallel import MeshConfig, make_mesh
from tests.hub.test_embedded import IDS, MASK, MODELS, embedded, wrapped, written


def look(name, mesh):
    alone = wrapped(name, scale=1)
    with tempfile.TemporaryDirectory() as folder:
        hub.save(alone, folder)
        spread = hub.load(folder, mesh=mesh)
    rows = [0, 1, 2, 0]
    x, mask = embedded(alone)[rows], MASK[rows].astype(int)
    sides = {} if written(alone) else {"decoder_input_ids": IDS[rows, :3]}
    want = np.asarray(alone(inputs_embeds=x, attention_mask=mask, **sides).logits)
    tokens = np.asarray(alone.generate(inputs_embeds=x, attention_mask=mask, max_new_tokens=6))
    with jax.set_mesh(mesh):
        logits = np.asarray(spread(inputs_embeds=x, attention_mask=mask, **sides).logits)
        found = np.asarray(spread.generate(inputs_embeds=jnp.asarray(x), attention_mask=mask, max_new_tokens=6))
    error = float(np.abs(logits - want).max() / np.abs(want).max())
    return {"error": error, "same": bool((found == tokens).all())}


def main():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices())
    print(json.dumps({"devices": len(jax.devices()), **{name: look(name, mesh) for name in MODELS}}))


if __name__ == "__main__":
    main()
