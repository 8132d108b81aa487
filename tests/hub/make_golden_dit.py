"""Make the golden checkpoint of DiT: a tiny random model of diffusers, and what it predicts.

pip install torch==2.13.0 diffusers
python tests/hub/make_golden_dit.py
"""

import shutil
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "golden" / "dit"
SIZES = {
    "num_attention_heads": 2, "attention_head_dim": 4, "in_channels": 1, "out_channels": 2, "num_layers": 3,
    "sample_size": 6, "patch_size": 2, "num_embeds_ada_norm": 5, "norm_eps": 1e-3,
}  # fmt: skip


def main() -> None:
    import diffusers
    import torch

    model = diffusers.DiTTransformer2DModel(**SIZES).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    for block in model.transformer_blocks:  # as published: one embedding, in every block
        block.norm1.emb.load_state_dict(model.transformer_blocks[0].norm1.emb.state_dict())
    draw = np.random.default_rng(0)
    images = draw.normal(size=(2, 1, 6, 6)).astype(np.float32)
    times, classes = np.array([3, 41], np.float32), np.array([1, 5], np.int32)
    with torch.no_grad():
        found = model(torch.tensor(images), timestep=torch.tensor(times), class_labels=torch.tensor(classes)).sample
    shutil.rmtree(FOLDER, ignore_errors=True)
    model.save_pretrained(FOLDER)
    diffusers.DDIMScheduler(clip_sample=False, timestep_spacing="trailing").save_pretrained(FOLDER)
    given = {"in_pixel_values": images, "in_timestep": times, "in_class_labels": classes}
    np.savez(FOLDER / "expected.npz", **given, out_sample=found.numpy())


if __name__ == "__main__":
    main()
