"""The compact convolutional Transformer in PyTorch, written from the paper (Hassani et al. 2021, §3), on our names."""

try:  # where doctest looks for examples there need be no torch
    import torch
    from torch.nn import functional
except ImportError:
    torch = functional = None


def tensors(options, *, classes=5, seed=0):
    """Draw the tensors of a model of these fields of config.json."""
    torch.manual_seed(seed)
    embed, inner = options["hidden_size"], options["intermediate_size"]
    widths = (options["num_channels"], *options["stem_sizes"], embed)
    places = _places(options)
    shapes = {"layernorm": (embed,), "classifier": (classes, embed), "pooler.score": (1, embed)}
    for i in range(options["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        shapes |= {f"{layer}.layernorm_{when}": (embed,) for when in ("before", "after")}
        shapes |= {f"{layer}.attention.attention.{name}": (embed, embed) for name in ("query", "key", "value")}
        shapes |= {f"{layer}.attention.output.dense": (embed, embed)}
        shapes |= {f"{layer}.intermediate.dense": (inner, embed), f"{layer}.output.dense": (embed, inner)}
    found = {"embeddings.position_embeddings": 0.3 * torch.randn(1, places, embed)}
    for i in range(len(widths) - 1):
        found[f"embeddings.convolutions.{i}.weight"] = 0.3 * torch.randn(widths[i + 1], widths[i], 3, 3)
    for name, shape in shapes.items():
        found[f"{name}.weight"] = 0.3 * torch.randn(shape) + (len(shape) == 1)
        if ".attention.attention." not in name and name != "pooler.score":
            found[f"{name}.bias"] = 0.2 * torch.randn(shape[0])
    return found


def forward(given, images, options):
    """Return logits and what every layer is given."""

    def linear(name, x):
        return functional.linear(x, given[f"{name}.weight"], given.get(f"{name}.bias"))

    def norm(name, x):
        eps = options.get("layer_norm_eps", 1e-5)
        return functional.layer_norm(x, x.shape[-1:], given[f"{name}.weight"], given[f"{name}.bias"], eps)

    def attend(name, x):
        heads = options["num_attention_heads"]
        parts = (linear(f"{name}.attention.{part}", x).unflatten(-1, (heads, -1)) for part in ("query", "key", "value"))
        q, k, v = (part.transpose(1, 2) for part in parts)
        found = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        return linear(f"{name}.output.dense", found.transpose(1, 2).flatten(2))

    x = images
    for i in range(len(options["stem_sizes"]) + 1):
        stride = 1 if options["max_pool"] else 2
        x = functional.conv2d(x, given[f"embeddings.convolutions.{i}.weight"], stride=stride, padding=1).relu()
        x = functional.max_pool2d(x, 3, stride=2, padding=1) if options["max_pool"] else x
    x, layers = x.flatten(2).transpose(1, 2) + given["embeddings.position_embeddings"], []
    for i in range(options["num_hidden_layers"]):
        layers.append(x)
        layer = f"encoder.layer.{i}"
        x = x + attend(f"{layer}.attention", norm(f"{layer}.layernorm_before", x))
        inside = functional.gelu(linear(f"{layer}.intermediate.dense", norm(f"{layer}.layernorm_after", x)))
        x = x + linear(f"{layer}.output.dense", inside)
    layers.append(x)
    x = norm("layernorm", x)
    pooled = (linear("pooler.score", x).softmax(1).transpose(1, 2) @ x)[:, 0]
    return linear("classifier", pooled), layers


def save(folder, given, options, *, classes=5):
    """Write a checkpoint."""
    import json

    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in given.items()}, folder / "model.safetensors")
    labels = {str(i): f"LABEL_{i}" for i in range(classes)}
    said = {"model_type": "cct", "architectures": ["CCTForImageClassification"], "id2label": labels, **options}
    (folder / "config.json").write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")


def _places(options):
    high, wide = options["image_size"]
    for _ in range(len(options["stem_sizes"]) + 1):
        high, wide = -(-high // 2), -(-wide // 2)
    return high * wide
