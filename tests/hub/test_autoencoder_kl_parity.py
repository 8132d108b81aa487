"""Equal to diffusers' AutoencoderKL: latents, images, tensors out and in again, a whole pipeline to pixels."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.task.draw_images import Drawing, decode_latents, draw_images, open_autoencoder

torch, diffusers = pytest.importorskip("torch"), pytest.importorskip("diffusers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("autoencoder_kl", "parity", "latents, images, tensors, pipelines")]

ODD = [
    {},
    {"block_out_channels": (8, 16, 16), "layers_per_block": 2, "norm_num_groups": 8},
    {"block_out_channels": (8, 12), "use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.1,
     "latent_channels": 6, "scaling_factor": 0.36},
    {"block_out_channels": (8,), "mid_block_add_attention": False, "in_channels": 1, "out_channels": 1},
]  # fmt: skip


def theirs(**change):
    sizes = {"block_out_channels": (8, 8), "norm_num_groups": 4, "sample_size": 16, **change}
    stages = len(sizes["block_out_channels"])
    kinds = {
        "down_block_types": ("DownEncoderBlock2D",) * stages,
        "up_block_types": ("UpDecoderBlock2D",) * stages,
    }
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(**sizes, **kinds).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def last(x):
    return np.moveaxis(np.asarray(x), 1, -1)


@pytest.mark.parametrize("change", ODD, ids=lambda change: ",".join(change) or "usual")
def test_latents_images_and_tensors_are_those_of_diffusers(tmp_path, change):
    model = theirs(**change)
    model.save_pretrained(tmp_path / "theirs")
    loaded = hub.load(tmp_path / "theirs")
    images = np.random.default_rng(0).uniform(-1, 1, (2, change.get("in_channels", 3), 16, 24)).astype(np.float32)
    with torch.no_grad():
        wanted, restored = model.encode(torch.tensor(images)).latent_dist, model(torch.tensor(images)).sample
    found = loaded.model.encode(jnp.asarray(last(images)))
    np.testing.assert_allclose(found.mean, last(wanted.mean), atol=1e-5)
    np.testing.assert_allclose(found.log_variance, last(wanted.logvar), atol=1e-5)
    np.testing.assert_allclose(found.divergence(), wanted.kl(), rtol=1e-5)
    np.testing.assert_allclose(loaded(pixel_values=images).sample, restored, atol=1e-5)
    hub.save(loaded, tmp_path / "ours")
    again = diffusers.AutoencoderKL.from_pretrained(tmp_path / "ours")
    for (name, one), (other, two) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(one, two), name
    said = {name: list(value) if isinstance(value, tuple) else value for name, value in model.config.items()}
    assert {name: again.config[name] for name in said if name[0] != "_"} == {
        k: v for k, v in said.items() if k[0] != "_"
    }


def test_old_names_of_attention_are_read(tmp_path):
    model = theirs()
    model.save_pretrained(tmp_path)
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "diffusion_pytorch_model.safetensors"
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    renamed = {
        re.sub(r"(attentions\.0\.)(to_q|to_k|to_v|to_out\.0)", lambda m: m[1] + old[m[2]], name): value
        for name, value in load_file(file).items()
    }
    assert any("proj_attn" in name for name in renamed)
    save_file(renamed, file)
    images = np.random.default_rng(0).uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32)
    with torch.no_grad():
        wanted = model(torch.tensor(images)).sample
    np.testing.assert_allclose(hub.load(tmp_path)(pixel_values=images).sample, wanted, atol=1e-5)


def test_a_pipeline_makes_the_images_of_diffusers(tmp_path):
    """With no noise added after the first: the same latents, decoded to the same bytes but for rounding."""
    autoencoder = theirs()
    autoencoder.save_pretrained(tmp_path / "vae")
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, num_embeds_ada_norm=7
    ).eval()  # fmt: skip
    first = transformer.transformer_blocks[0].norm1.emb.state_dict()
    for block in transformer.transformer_blocks:
        block.norm1.emb.load_state_dict(first)
    transformer.save_pretrained(tmp_path / "transformer")
    diffusers.DDIMScheduler(clip_sample=False).save_pretrained(tmp_path / "scheduler")
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "DiTPipeline"}))
    pipeline, drawing = hub.load(tmp_path), Drawing(count=5, classes=("3",), steps=3)
    latents = draw_images(pipeline, drawing)
    images = decode_latents(open_autoencoder(tmp_path), latents)
    with torch.no_grad():
        scaled = torch.tensor(np.moveaxis(latents, -1, 1)) / autoencoder.config.scaling_factor
        decoded = autoencoder.decode(scaled).sample
    wanted = last(((decoded / 2 + 0.5).clamp(0, 1) * 255).round())
    assert images.shape == (5, 16, 16, 3)
    assert images.dtype == np.uint8
    assert images.std() > 1
    assert np.abs(images.astype(int) - wanted).max() <= 1
