"""Folders of timm against timm: outputs, tensors and config.json back, what timm makes of what is written, images."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registry import find_family
from flax_transformer.hub.stored_config import with_model_type
from flax_transformer.hub.weights import resolve
from flax_transformer.models.preset import abstract
from tests.hub import timm_checkpoint

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def timm():
    pytest.importorskip("torch")
    try:
        return timm_checkpoint.timm()
    except ImportError:
        pytest.skip("timm is not installed")


@pytest.mark.proves("timm_vit", "parity", "logits, features, tensors and images against timm")
@pytest.mark.proves("timm_eva", "parity", "logits, features, tensors and images against timm")
@pytest.mark.proves("timm_convnext", "parity", "logits, features, tensors and images against timm")
@pytest.mark.parametrize("case", timm_checkpoint.CASES)
def test_a_folder_of_timm_comes_in_and_goes_out(timm, tmp_path, case):
    import torch

    model, images = timm_checkpoint.write(case, tmp_path / "theirs")
    wanted = timm_checkpoint.outputs(model, images)
    pretrained = hub.load(tmp_path / "theirs")
    got = pretrained(pixel_values=images)
    for name, value in wanted.items():
        assert np.abs(np.asarray(got[name]) - value).max() <= 1e-5 * np.abs(value).max(), name
    hub.save(pretrained, tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    theirs, ours = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours"))
    assert theirs == ours
    again = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    with torch.no_grad():
        np.testing.assert_array_equal(again(torch.as_tensor(images)).numpy(), next(iter(wanted.values())))


@pytest.mark.parametrize("case", ["vit", "registers", "registers, class token", "eva02, norms inside"])
@pytest.mark.parametrize("size", [(56, 84), (16, 16), (40, 29)])
def test_images_of_any_size_are_read_as_timm_reads_them(timm, tmp_path, case, size):
    """Positions for a coarser grid are smoothed, where the model takes images of any size."""
    import torch

    model, images = timm_checkpoint.write(case, tmp_path / "theirs", dynamic_img_size=True)
    patch = model.patch_embed.patch_size
    height, width = (max(side // each, 1) * each for side, each in zip(size, patch, strict=True))
    images = np.random.default_rng(1).normal(size=(2, 3, height, width)).astype(np.float32)
    wanted = timm_checkpoint.outputs(model, images)
    pretrained = hub.load(tmp_path / "theirs")
    got = pretrained(pixel_values=images)
    for name, value in wanted.items():
        assert np.abs(np.asarray(got[name]) - value).max() <= 1e-5 * np.abs(value).max(), name
    hub.save(hub.wrap(pretrained.model, pretrained.config["architectures"][0]), tmp_path / "ours")
    again = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    with torch.no_grad():
        np.testing.assert_array_equal(again(torch.as_tensor(images)).numpy(), next(iter(wanted.values())))


def test_positions_are_fitted_to_other_images_as_timm_does(timm, tmp_path):
    import torch

    _, _ = timm_checkpoint.write("registers, class token", tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["model_args"]
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=(56, 14)).eval()
    ours = hub.load(tmp_path, lenient=hub.Lenient(config={"model_args": {**said, "img_size": [56, 14]}}))
    images = np.random.default_rng(1).normal(size=(2, 3, 56, 14)).astype(np.float32)
    with torch.no_grad():
        wanted = theirs(torch.as_tensor(images)).numpy()
    assert np.abs(ours(pixel_values=images).logits - wanted).max() <= 1e-5 * np.abs(wanted).max()


ACTIVATIONS = {"GELU": "gelu", "QuickGELU": "quick_gelu", "SiLU": "silu"}
NAMES = {"vit": 64, "deit": 8, "eva": 14, "convnext": 9}
"""How names of architectures begin, and how many of these are read at least."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_names_stand_for_what_they_do_in_timm(timm, kind):
    """Of every architecture that is read: tensors, heads, norms and pooling of what timm makes without values."""
    read = 0
    for name in timm.list_models(f"{kind}*"):
        said = timm.get_pretrained_cfg(name, allow_unregistered=False)
        stated = {"num_classes": said.num_classes, "pretrained_cfg": {"input_size": said.input_size}}
        if (found := _read({"architecture": name, **stated})) is None:
            continue
        family, architecture, config = found
        options = {} if kind == "convnext" else {"img_size": config.backbone.patches.image}
        model = timm.create_model(name, device="meta", **options)
        entries = resolve(family.rows(architecture), abstract(config))
        assert {each: entry.shape for entry in entries for each in entry.names} == {
            each: tuple(x.shape) for each, x in model.state_dict().items()
        }, name
        if hasattr(model, "blocks"):
            block = config.backbone.block
            assert block.attention.heads == model.blocks[0].attn.num_heads, name
            assert block.residual.norm_eps == model.blocks[0].norm1.eps, name
            assert block.feedforward.activation == ACTIVATIONS[type(model.blocks[0].mlp.act).__name__], name
            assert config.head.pool == {"token": "first", "avg": "mean"}[model.global_pool], name
        read += 1
    assert read >= NAMES[kind]


def _read(config):
    """Return family, architecture and the model's config, or None of what is not read."""
    try:
        fields = Fields.of(with_model_type(config))
        family, architecture = find_family(fields)
        return family, architecture, architecture.config(fields)
    except ValueError as error:
        if not re.search("read are|are read", str(error)):
            raise
        return None


@pytest.mark.parametrize("case", ["vit", "clip", "convnext"])
def test_images_are_prepared_as_timm_does(timm, tmp_path, case):
    timm_checkpoint.write(case, tmp_path)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    config = timm.data.resolve_data_config(model.pretrained_cfg)
    transform, processor = timm.data.create_transform(**config), hub.load(tmp_path).processor
    draw = np.random.default_rng(0)
    for shape in ((40, 57), (300, 220), (31, 31)):
        image = Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8))
        wanted, got = transform(image).numpy(), processor(image)["pixel_values"][0]
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=1e-5)
