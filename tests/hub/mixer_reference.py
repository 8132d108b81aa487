"""MLP-Mixer in PyTorch, written from the paper (Tolstikhin et al. 2021, §2), on tensors named as timm's."""

try:  # where doctest looks for examples there need be no torch
    import torch
    from torch.nn import functional
except ImportError:
    torch = functional = None


def tensors(options, *, classes=5, seed=0):
    """Draw the tensors of a mixer of these fields of config.json."""
    torch.manual_seed(seed)
    embed, high, wide = options["hidden_size"], *options["patch_size"]
    image, patch = options["image_size"], options["patch_size"]
    places = (image[0] // patch[0]) * (image[1] // patch[1])
    shapes = {"stem.proj": (embed, options["num_channels"], high, wide), "norm": (embed,), "head": (classes, embed)}
    for i in range(options["num_hidden_layers"]):
        shapes |= {f"blocks.{i}.norm1": (embed,), f"blocks.{i}.norm2": (embed,)}
        layers = {
            "tokens": (options["tokens_intermediate_size"], places),
            "channels": (options["intermediate_size"], embed),
        }
        for name, (inner, width) in layers.items():
            shapes |= {f"blocks.{i}.mlp_{name}.fc1": (inner, width), f"blocks.{i}.mlp_{name}.fc2": (width, inner)}
    found = {}
    for name, shape in shapes.items():
        found[f"{name}.weight"] = 0.3 * torch.randn(shape) + (len(shape) == 1)
        found[f"{name}.bias"] = 0.2 * torch.randn(shape[0])
    return found


def forward(given, images, options):
    """Return logits and what every layer is given."""

    def linear(name, x):
        return functional.linear(x, given[f"{name}.weight"], given[f"{name}.bias"])

    def norm(name, x):
        eps = options.get("layer_norm_eps", 1e-6)
        return functional.layer_norm(x, x.shape[-1:], given[f"{name}.weight"], given[f"{name}.bias"], eps)

    def mlp(name, x):
        return linear(f"{name}.fc2", functional.gelu(linear(f"{name}.fc1", x)))

    stride = tuple(options["patch_size"])
    x = functional.conv2d(images, given["stem.proj.weight"], given["stem.proj.bias"], stride=stride)
    x, layers = x.flatten(2).transpose(1, 2), []
    for i in range(options["num_hidden_layers"]):
        layers.append(x)
        x = x + mlp(f"blocks.{i}.mlp_tokens", norm(f"blocks.{i}.norm1", x).transpose(1, 2)).transpose(1, 2)
        x = x + mlp(f"blocks.{i}.mlp_channels", norm(f"blocks.{i}.norm2", x))
    x = norm("norm", x)
    return linear("head", x.mean(1)), [*layers, x]


def save(folder, given, options, *, classes=5):
    """Write a checkpoint."""
    import json

    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in given.items()}, folder / "model.safetensors")
    labels = {str(i): f"LABEL_{i}" for i in range(classes)}
    said = {"model_type": "mixer", "architectures": ["MixerForImageClassification"], "id2label": labels, **options}
    (folder / "config.json").write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
