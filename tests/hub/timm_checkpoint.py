"""Folders as timm writes them, of random weights, and the golden ones made so.

pip install torch==2.13.0 timm torchvision
python -m tests.hub.timm_checkpoint
"""

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "vit": ("vit_tiny_patch16_224", {
        "num_classes": 7, "img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3,
    }),
    "mean of patches, no bias": ("vit_base_patch16_224", {
        "num_classes": 5, "img_size": (32, 48), "patch_size": 16, "embed_dim": 32, "depth": 3, "num_heads": 4,
        "global_pool": "avg", "qkv_bias": False, "mlp_ratio": 3.0,
    }),
    "dinov2": ("vit_small_patch14_dinov2", {
        "num_classes": 0, "img_size": 28, "embed_dim": 24, "depth": 2, "num_heads": 3,
    }),
    "clip": ("vit_base_patch16_clip_quickgelu_224", {
        "num_classes": 7, "img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3,
    }),
    "clip, mean": ("vit_base_patch32_clip_224", {
        "num_classes": 0, "img_size": 64, "embed_dim": 24, "depth": 1, "num_heads": 6, "in_chans": 1,
        "global_pool": "avg",
    }),
    "distilled": ("deit_tiny_distilled_patch16_224", {
        "num_classes": 5, "img_size": 32, "embed_dim": 24, "depth": 1, "num_heads": 3,
    }),
    "registers": ("vit_medium_patch16_reg4_gap_256", {
        "num_classes": 5, "img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3,
    }),
    "registers, class token": ("vit_small_patch14_reg4_dinov2", {
        "num_classes": 4, "img_size": (28, 42), "embed_dim": 32, "depth": 3, "num_heads": 4, "mlp_ratio": 2.5,
    }),
    "one register, in the table of positions": ("vit_base_patch16_224", {
        "num_classes": 0, "img_size": 48, "patch_size": (16, 12), "embed_dim": 16, "depth": 1, "num_heads": 2,
        "reg_tokens": 1, "in_chans": 1, "global_pool": "avg", "fc_norm": False,
    }),
    "registers, gated": ("vit_giant_patch14_reg4_dinov2", {
        "num_classes": 3, "img_size": 28, "embed_dim": 24, "depth": 2, "num_heads": 2, "class_token": False,
        "global_pool": "avg",
    }),
    "no bias of queries": ("vit_so150m2_patch16_reg1_gap_256", {
        "num_classes": 6, "img_size": 32, "embed_dim": 26, "depth": 2, "num_heads": 13,
    }),
    "eva": ("eva_giant_patch14_224", {
        "num_classes": 5, "img_size": (28, 42), "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2.5,
    }),
    "eva, class token": ("eva_giant_patch14_clip_224", {
        "num_classes": 0, "img_size": 28, "embed_dim": 32, "depth": 1, "num_heads": 4, "qkv_bias": False,
        "init_values": 0.1, "in_chans": 1,
    }),
    "eva02": ("eva02_tiny_patch14_224", {
        "num_classes": 4, "img_size": (42, 28), "embed_dim": 24, "depth": 2, "num_heads": 3,
    }),
    "eva02, norms inside": ("eva02_base_patch14_448", {
        "num_classes": 6, "img_size": 64, "patch_size": 16, "embed_dim": 32, "depth": 3, "num_heads": 2,
        "ref_feat_shape": (2, 3),
    }),
    "eva02, clip": ("eva02_base_patch16_clip_224", {
        "num_classes": 7, "img_size": 48, "embed_dim": 48, "depth": 2, "num_heads": 4,
    }),
    "eva02, registers": ("eva02_small_patch14_336", {
        "num_classes": 3, "img_size": 42, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_reg_tokens": 2,
        "no_embed_class": True, "rope_temperature": 50.0, "scale_mlp": True, "swiglu_mlp": False,
    }),
    "eva, rotary positions alone": ("vit_medium_patch16_rope_reg1_gap_256", {
        "num_classes": 5, "img_size": (48, 32), "embed_dim": 32, "depth": 2, "num_heads": 4, "use_fc_norm": False,
    }),
    "convnext of convolutions": ("convnext_atto", {"num_classes": 6, "depths": (1, 1, 2, 1), "dims": (8, 12, 16, 20)}),
    "convnext": ("convnext_tiny", {"num_classes": 6, "depths": (1, 2, 1, 1), "dims": (8, 16, 24, 32)}),
    "convnext without classes": ("convnext_base", {
        "num_classes": 0, "depths": (1, 1, 2, 1), "dims": (8, 12, 16, 20), "in_chans": 1,
    }),
    "convnext, other factors of channels": ("convnext_small", {
        "num_classes": 3, "depths": (2, 1, 1, 1), "dims": (4, 8, 12, 20), "ls_init_value": 0.1,
    }),
}  # fmt: skip


def timm():
    """Import timm, also where torchvision is built for another torch: its two operations are declared then."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm

    timm.declared = library
    return timm


def write(case, folder, seed=0, **more):
    """Write a checkpoint as timm does, with more arguments; return the model and images for it."""
    import torch

    name, options = CASES[case]
    options = {**options, **more}
    torch.manual_seed(seed)
    model = timm().create_model(name, pretrained=False, **options).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.1 * torch.randn_like(each))
    arguments = {key: value for key, value in options.items() if key != "num_classes"}
    timm().models.save_for_hf(model, folder, model_args=arguments, safe_serialization=True)
    size = options.get("img_size", 64)
    size = size if isinstance(size, tuple) else (size, size)
    images = np.random.default_rng(seed).normal(size=(2, options.get("in_chans", 3), *size)).astype(np.float32)
    return model, images


def outputs(model, images):
    """Return what timm gives: logits, or features where there are no classes, and what is before the head."""
    import torch

    with torch.no_grad():
        given = torch.as_tensor(images)
        name = "logits" if model.num_classes else "pooler_output"
        return {name: model(given).numpy(), "last_hidden_state": model.forward_features(given).numpy()}


def make(case, folder):
    """Make a golden checkpoint."""
    model, images = write(case, folder)
    arrays = {f"out_{name}": value for name, value in outputs(model, images).items()}
    np.savez_compressed(folder / "expected.npz", in_pixel_values=images, **arrays)


if __name__ == "__main__":
    make("vit", GOLDEN / "timm_vit")
    make("registers, class token", GOLDEN / "timm_vit_registers")
    make("eva02, norms inside", GOLDEN / "timm_eva")
    make("convnext", GOLDEN / "timm_convnext")
