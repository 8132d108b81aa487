"""Compare a checkpoint that `transformers` made with ours, call for call: every output, every layer, and back again."""

from pathlib import Path

import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from flax_transformer import hub


def compare(model, folder, *, published=lambda name: name, **inputs):
    """Save a torch model, load it here, and demand the same outputs, layers, tensors, and a round trip.

    Positions that a mask hides are not compared: what a model says about padding has no meaning.
    Gives the checkpoint and its output. `published(name)` is what a tensor that transformers writes is called in the
    files on the hub.
    """
    theirs, back = Path(folder) / "theirs", Path(folder) / "back"
    model.eval().save_pretrained(theirs)
    expected = forward(model, inputs)
    ours = hub.load(theirs)
    got = ours(**inputs, output_hidden_states=True)
    missing = [name for name in expected if name.split(".")[0] not in got.keys()]  # noqa: SIM118
    assert not missing, f"transformers returns {missing} too"
    for name, value in expected.items():
        close(name, value, part(got, name), inputs)
    hub.save(ours, back)
    same_tensors(theirs, back, published)
    again = forward(copied(type(model).from_pretrained(back)), inputs)
    for name, value in expected.items():
        for a, b in zip(as_tuple(value), as_tuple(again[name]), strict=True):
            np.testing.assert_array_equal(a, b)
    return ours, got


def compare_made(config, kind, folder, **inputs):
    """Make a model here and save it; demand that transformers opens it with no tensor missing, and the same outputs.

    Args:
      kind: the class of transformers.
    """
    import transformers

    ours = hub.wrap(config.build(nnx.Rngs(3)), kind)
    hub.save(ours, folder)
    theirs, loading = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not {*loading["missing_keys"], *loading["unexpected_keys"]}, loading
    got = ours(**inputs, output_hidden_states=True)
    for name, value in forward(theirs.eval(), inputs).items():
        close(name, value, part(got, name), inputs)


def copied(model):
    """Copy a torch model's parameters out of the file they are mapped from: its results depend on their alignment."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model.eval()


def forward(model, inputs):
    import torch

    with torch.no_grad():
        tensors = {name: torch.as_tensor(np.asarray(value)) for name, value in inputs.items()}
        output = model(**tensors, output_hidden_states=True, use_cache=False)
    numpy = lambda value: tuple(v.numpy() for v in value) if isinstance(value, tuple) else value.numpy()  # noqa: E731
    flat = dict(parts_of(output))
    apart = ("past_key_values", "loss", "image_outputs")  # the last is of an encoder, which has a test of its own
    return {name: numpy(value) for name, value in flat.items() if name.split(".")[0] not in apart}


def parts_of(output, prefix=""):
    """List what an output has by name, with a dot where it is in an output within it."""
    for name, value in output.items():
        yield from parts_of(value, f"{prefix}{name}.") if hasattr(value, "items") else [(prefix + name, value)]


def part(output, name):
    """Return what `parts_of` calls so."""
    for each in name.split("."):
        output = output[each]
    return output


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def close(name, expected, got, inputs):
    expected, got = as_tuple(expected), as_tuple(got)
    assert len(expected) == len(got), f"{name}: {len(expected)} arrays, {len(got)} here"
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        b = np.asarray(b)
        assert a.shape == b.shape, f"{name} {i}: {a.shape}, {b.shape} here"
        shown = seen(name, a, inputs)
        error = np.abs(a - b)[shown].max() / (np.abs(a[shown]).max() or 1)
        assert error <= 1e-5, f"{name} {i}: relative error {error}"


def seen(name, array, inputs):
    """Say which positions of an output are real."""
    decoding = "decoder_input_ids" in inputs and not name.startswith("encoder")
    mask = inputs.get("decoder_attention_mask" if decoding else "attention_mask")
    if mask is not None and array.shape[1:2] == (3 * mask.shape[1],):  # a return, a state and an action each
        mask = np.repeat(mask, 3, axis=1)
    if mask is None or array.shape[: mask.ndim] != mask.shape:
        return ...
    return np.asarray(mask) != 0


def same_tensors(theirs, back, published=lambda name: name):
    a, b = (load_file(folder / "model.safetensors") for folder in (theirs, back))
    a = {published(name): tensor for name, tensor in a.items()}
    assert sorted(a) == sorted(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
        assert a[name].dtype == b[name].dtype


def random_ids(vocab, rows, length, *, seed=0, low=3):
    return np.random.default_rng(seed).integers(low, vocab, (rows, length))


def padded(lengths, length, side="right"):
    """Return an attention mask for rows of these lengths."""
    at = np.arange(length)[None]
    lengths = np.asarray(lengths)[:, None]
    return ((at < lengths) if side == "right" else (at >= length - lengths)).astype(np.int64)
