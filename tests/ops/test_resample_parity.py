"""Resampling against torch's `interpolate`, and of position tables against the models of transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.resample import bicubic, bilinear, resample, resample_positions, resample_relative_bias

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("resampling", "parity", "torch's bicubic and bilinear")]

KERNELS = {"bicubic": bicubic, "bilinear": bilinear}
SIZES = [
    ((14, 14), (16, 24)), ((7, 7), (5, 3)), ((3, 5), (11, 2)), ((1, 1), (4, 7)), ((2, 9), (9, 2)), ((24, 24), (7, 31)),
    ((37, 37), (16, 16)), ((13, 17), (19, 23)), ((1, 36), (1, 20)), ((64, 48), (97, 101)),
]  # fmt: skip


@pytest.mark.parametrize("mode", KERNELS)
@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_size_up_and_down_is_torchs(mode, old, new, dtype):
    grid = np.random.default_rng(0).normal(size=(2, *old, 3)).astype(dtype)
    theirs = torch.nn.functional.interpolate(
        torch.tensor(grid).permute(0, 3, 1, 2), size=new, mode=mode, align_corners=False
    )
    with jax.enable_x64(dtype == "float64"):
        ours = np.asarray(resample(jnp.asarray(grid), new, kernel=KERNELS[mode]))
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, theirs.permute(0, 2, 3, 1), rtol=0, atol=1e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("mode", KERNELS)
@pytest.mark.parametrize(("old", "new"), [((37, 37), (16, 20)), ((16, 16), (37, 30)), ((5, 7), (8, 9))])
def test_a_scale_factor_shifts_points_as_torchs_does(mode, old, new):
    grid = np.random.default_rng(0).normal(size=(1, *old, 2)).astype(np.float32)
    ratio = tuple((n + 0.1) / o for n, o in zip(new, old, strict=True))
    theirs = torch.nn.functional.interpolate(torch.tensor(grid).permute(0, 3, 1, 2), scale_factor=ratio, mode=mode)
    assert theirs.shape[2:] == new
    ours = resample(jnp.asarray(grid), new, kernel=KERNELS[mode], ratio=ratio)
    np.testing.assert_allclose(ours, theirs.permute(0, 2, 3, 1), rtol=0, atol=1e-6)


def embeddings(name):
    """Make the embeddings of a small model of 6 × 6 patches, with random positions."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    image = {"image_size": 24, "patch_size": 4, "num_channels": 3}
    if name == "vit_mae":
        config = transformers.ViTMAEConfig(**sizes, **image, decoder_hidden_size=8, decoder_num_attention_heads=2)
        found = transformers.ViTMAEModel(config).embeddings
    elif name == "beit":
        config = transformers.BeitConfig(**sizes, **image, use_absolute_position_embeddings=True)
        found = transformers.BeitModel(config).embeddings
    elif name == "swin":
        config = transformers.SwinConfig(**image, embed_dim=8, depths=[1], num_heads=[2], use_absolute_embeddings=True)
        found = transformers.SwinModel(config).embeddings
    else:
        kind = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2"}[name]
        config = getattr(transformers, f"{kind}Config")(**sizes, **image)
        found = getattr(transformers, f"{kind}Model")(config).embeddings
    torch.nn.init.normal_(found.position_embeddings)
    return found


@pytest.mark.parametrize(
    ("name", "tokens"), [("vit", 1), ("deit", 2), ("dinov2", 1), ("beit", 1), ("swin", 0), ("vit_mae", 1)]
)
@pytest.mark.parametrize("size", [(6, 6), (8, 5), (4, 9), (3, 3), (13, 11)])
def test_positions_are_those_of_the_family(name, tokens, size):
    theirs = embeddings(name)
    patches = torch.zeros(1, tokens + size[0] * size[1], 8)
    with torch.no_grad():
        expected = theirs.interpolate_pos_encoding(patches, 4 * size[0], 4 * size[1]).detach().numpy()
    ours = resample_positions(jnp.asarray(theirs.position_embeddings.detach().numpy()), size, tokens=tokens)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("patches", [36, 40, 25])
def test_the_decoder_of_masked_autoencoders_takes_patches_for_one_row(patches):
    config = transformers.ViTMAEConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=24, patch_size=4,
        decoder_hidden_size=8, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=8,
    )  # fmt: skip
    decoder = transformers.ViTMAEForPreTraining(config).decoder
    torch.nn.init.normal_(decoder.decoder_pos_embed)
    expected = decoder.interpolate_pos_encoding(torch.zeros(1, patches + 1, 8)).detach()
    ours = resample_positions(jnp.asarray(decoder.decoder_pos_embed.detach().numpy()), (1, patches), grid=(1, 36))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [(4, 4), (6, 6), (3, 7), (9, 5)])
def test_relative_biases_are_beits(window):
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    config = transformers.BeitConfig(image_size=16, patch_size=4, num_attention_heads=2, hidden_size=8)
    theirs = BeitRelativePositionBias(config)
    torch.nn.init.normal_(theirs.relative_position_bias_table)
    expected = theirs(window).detach()[0]
    table = jnp.asarray(theirs.relative_position_bias_table.detach().numpy())
    ours = resample_relative_bias(table, window, tokens=3, kernel=bilinear)
    index = theirs.generate_relative_position_index(window).long().numpy()
    np.testing.assert_allclose(np.moveaxis(np.asarray(ours)[index], -1, 0), expected, rtol=0, atol=1e-6)
