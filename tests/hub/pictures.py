"""Models of images beside transformers': random weights, odd sizes."""

import numpy as np

from tests.hub.oracle import compare


def make(kind, config, *, seed=1, **options):
    """Make a torch model of random weights, biases and norms included."""
    import torch
    import transformers

    torch.manual_seed(seed)
    return strengthen(getattr(transformers, kind)(getattr(transformers, config)(**options)))


def strengthen(model):
    """Make biases, norms, tokens and positions of a torch model random too, strong enough to matter."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.2 * torch.randn_like(parameter) if parameter.ndim == 1 or "token" in name else 0)
            if "position" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def images(height, width, channels=3, rows=2, seed=0):
    """Return random images, channels first."""
    return np.random.default_rng(seed).standard_normal((rows, channels, height, width), dtype=np.float32)


__all__ = ["compare", "images", "make", "strengthen"]
