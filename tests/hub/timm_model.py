"""Models of timm: tiny ResNets under names of their own, and MLP-Mixers; and the golden detectors made with it.

    pip install torch==2.13.0 transformers timm torchvision
    python -m tests.hub.timm_model

Each folder of tests/hub/golden_dilated holds a detector whose last stage dilates, as `save_pretrained` writes it, and
`expected.npz`: inputs as `in_NAME`, outputs as `out_NAME`.
"""

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden_dilated"
TINY = {
    "basic": ("basic", [8, 8, 8, 12], [1, 1, 1, 2]),
    "bottleneck": ("bottleneck", [8, 16, 16, 24], [1, 1, 1, 2]),
}
"""As `TIMM` in hub/family/detr.py has them: kind of the blocks, widths and depths. Stems have 64 channels."""
DETR = {
    "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8, "decoder_ffn_dim": 4, "num_queries": 5, "num_channels": 1, "init_std": 1.0, "num_labels": 3,
}  # fmt: skip


def register():
    """Return timm the tiny ResNets, by their names."""
    from timm.models import _builder, resnet
    from timm.models._registry import register_model

    def model(name, kind, widths, depths):
        block = {"basic": resnet.BasicBlock, "bottleneck": resnet.Bottleneck}[kind]
        channels = tuple(width // block.expansion for width in widths)

        def make(pretrained=False, **options):
            return _builder.build_model_with_cfg(
                resnet.ResNet, name, False, block=block, layers=tuple(depths), channels=channels, **options
            )

        make.__name__, make.__module__ = name, resnet.__name__
        register_model(make)

    for name, each in TINY.items():
        model(name, *each)


def detector(backbone, *, dilation=True, seed=0, **options):
    """Make a detector of random weights, batch norms included, on a backbone that timm names."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.DetrConfig(
        use_timm_backbone=True,
        backbone=backbone,
        use_pretrained_backbone=False,
        dilation=dilation,
        **{**DETR, **options},
    )
    model = transformers.DetrForObjectDetection(config).eval()
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            if each.ndim == 1:
                each.add_(0.3 * torch.rand_like(each))
    return model


def pictures():
    """Return two images, one of them padded."""
    values = np.random.default_rng(0).normal(size=(2, 1, 50, 70)).astype(np.float32)
    mask = np.ones((2, 50, 70), np.int64)
    mask[1, 35:], mask[1, :, 40:] = 0, 0
    return {"pixel_values": values, "pixel_mask": mask}


def make(name):
    """Make a golden checkpoint."""
    from tests.hub.oracle import forward

    model, given = detector(name), pictures()
    model.save_pretrained(GOLDEN / name)
    wanted = ("logits", "pred_boxes", "encoder_last_hidden_state")
    arrays = {f"out_{key}": value for key, value in forward(model, given).items() if key in wanted}
    np.savez_compressed(GOLDEN / name / "expected.npz", **arrays, **{f"in_{key}": x for key, x in given.items()})


if __name__ == "__main__":
    register()
    for each in TINY:
        make(each)
