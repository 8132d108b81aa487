"""Make the golden checkpoint of AutoencoderKL: a tiny random model of diffusers, and the images it restores.

pip install torch==2.13.0 diffusers
python tests/hub/make_golden_autoencoder_kl.py
"""

import shutil
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "golden" / "autoencoder-kl"
SIZES = {
    "block_out_channels": (4, 8), "norm_num_groups": 2, "layers_per_block": 1, "sample_size": 8, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip


def main() -> None:
    import diffusers
    import torch

    model = diffusers.AutoencoderKL(**SIZES).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    images = np.random.default_rng(0).normal(size=(2, 3, 8, 6)).astype(np.float32)
    with torch.no_grad():
        found = model(torch.tensor(images)).sample
    shutil.rmtree(FOLDER, ignore_errors=True)
    model.save_pretrained(FOLDER)
    np.savez(FOLDER / "expected.npz", in_pixel_values=images, out_sample=found.numpy())


if __name__ == "__main__":
    main()
