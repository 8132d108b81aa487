"""Trained prompts in PEFT's folders: embeddings of virtual tokens, or keys and values before every layer's.

The first are those of prompt tuning (Lester et al. 2021, https://arxiv.org/abs/2104.08691) and P-tuning, the second of
prefix tuning (Li & Liang 2021, https://arxiv.org/abs/2101.00190). Read once, both are a `Past`.

Axes: P virtual tokens, D width of embeddings, L layers, K heads of keys and values, H their width.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from safetensors.numpy import save_file

from flax_transformer.hub.adapter import ADAPTER, WEIGHTS, read_adapter
from flax_transformer.hub.file import open_file
from flax_transformer.hub.generation_input import start_of
from flax_transformer.hub.given import name_of
from flax_transformer.hub.past import Past

PROMPTS = ("PROMPT_TUNING", "P_TUNING")
PREFIX = "PREFIX_TUNING"
TENSOR = "prompt_embeddings"


def prompt_cache(model: Any, prompt: Float[Array, "P D"]) -> Any:
    """Let a decoder-only model read virtual tokens of these embeddings: the cache of one row, for `model.read_on`.

    Differentiable by the prompt: what prompt tuning trains.

    Raises:
      ValueError: embeddings of another width.
    """
    width = model.cfg.embedding.embed
    if prompt.ndim != 2 or prompt.shape[1] != width or not len(prompt):
        raise ValueError(f"a prompt has embeddings of the model's width, [P, {width}], got {prompt.shape}")
    return model.read(prompt[None], jnp.zeros((1, len(prompt)), bool))[1]


def prefix_cache(model: Any, prefix: Float[Array, "P L 2 K H"]) -> Any:
    """Put keys and values before those of all tokens: the cache of one row, for `model.read_on`.

    Differentiable by the prefix: what prefix tuning trains. Rotary keys are turned already.

    Raises:
      ValueError: keys and values of another shape than the model's, or a model that keeps latents in their place.
    """
    attention = model.cfg.block.attention
    if attention.query_width != attention.width:
        raise ValueError("a prefix has keys and values of heads, the model keeps latents in their place")
    shape = (model.cfg.depth, 2, attention.resolved_kv_heads, attention.width)
    if prefix.ndim != 5 or prefix.shape[1:] != shape or not len(prefix):
        raise ValueError(f"a prefix has keys and values of every layer, {['P', *shape]}, got {list(prefix.shape)}")
    count = len(prefix)
    cache = model.init_cache(1, count)
    key, value = prefix[:, :, 0].swapaxes(0, 1), prefix[:, :, 1].swapaxes(0, 1)
    if isinstance(cache.layers, tuple):
        layers = tuple(layer.append(key[i], value[i]) for i, layer in enumerate(cache.layers))
    else:
        layers = jax.vmap(lambda layer, key, value: layer.append(key, value))(cache.layers, key, value)
    return replace(cache, layers=layers, index=cache.index + count, padding=jnp.zeros((1, count), bool))


def read_prompt_adapter(pretrained: Any, name: Any) -> Past:
    """Read a trained prompt or prefix of PEFT; `pretrained.generate(ids, past=past)` goes on from it in every row.

    Args:
      pretrained: the checkpoint that it was trained with.
      name: folder or hub id.

    Raises:
      FileNotFoundError: no adapter there.
      ValueError: an adapter of another kind, or of another model.
    """
    folder, config = read_adapter(name)
    kind, task = config.get("peft_type"), config.get("task_type")
    if kind not in (*PROMPTS, PREFIX) or task != "CAUSAL_LM":
        raise ValueError(
            f"a trained prompt is one of {', '.join((*PROMPTS, PREFIX))} for CAUSAL_LM, {folder / ADAPTER} has "
            f"{kind!r} for {task!r}"
        )
    _check_reader(pretrained)
    stored = open_file(folder / WEIGHTS)
    if TENSOR not in stored:
        raise ValueError(f"{folder / WEIGHTS} must have {TENSOR}, it has {', '.join(stored) or 'nothing'}")
    values = jnp.asarray(np.asarray(stored[TENSOR].read(), np.float32))
    if kind == PREFIX:
        layers, heads = (_count(config, each, folder) for each in ("num_layers", "num_attention_heads"))
        if values.ndim != 2 or values.shape[1] % (2 * layers * heads):
            raise ValueError(
                f"{folder / WEIGHTS}: {TENSOR} must have 2 × {layers} layers × {heads} heads in a row, got "
                f"{list(values.shape)}"
            )
        values = values.reshape(len(values), layers, 2, heads, -1)
    try:
        cache = (_read_prefix if kind == PREFIX else _read_prompt)(pretrained.decoder, values)
    except ValueError as error:
        raise ValueError(f"{folder} was trained with another model: {error}") from error
    return Past(cache, np.zeros(0, np.int32), len(values))


def save_prompt_adapter(
    prompt: Float[Array | np.ndarray, "P D"] | Float[Array | np.ndarray, "P L 2 K H"],
    pretrained: Any,
    folder: str | Path,
    *,
    base: str = "",
) -> None:
    """Write a trained prompt [P, D] or prefix [P, L, 2, K, H] as PEFT does.

    Args:
      folder: new or empty.
      base: the checkpoint that it was trained with, a folder or hub id.

    Raises:
      ValueError: a folder that holds something, or a shape that is not the model's.
    """
    folder, values = Path(folder), np.asarray(prompt, np.float32)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"a prompt is written to a new or empty folder, got {folder}")
    _check_reader(pretrained)
    model = pretrained.model
    jax.eval_shape(prefix_cache if values.ndim == 5 else prompt_cache, model, jnp.asarray(values))
    attention = model.cfg.block.attention
    heads = attention.resolved_kv_heads if values.ndim == 5 else attention.heads
    config = {
        "base_model_name_or_path": base or None, "inference_mode": True, "num_attention_heads": heads,
        "num_layers": model.cfg.depth, "num_transformer_submodules": 1, "num_virtual_tokens": len(values),
        "peft_type": PREFIX if values.ndim == 5 else PROMPTS[0], "task_type": "CAUSAL_LM",
        "token_dim": heads * attention.width if values.ndim == 5 else values.shape[1],
    }  # fmt: skip
    if values.ndim == 5:
        config |= {"encoder_hidden_size": config["token_dim"], "prefix_projection": False}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({TENSOR: np.ascontiguousarray(values.reshape(len(values), -1))}, folder / WEIGHTS)
    (folder / ADAPTER).write_text(json.dumps(config, indent=2) + "\n")


_read_prompt, _read_prefix = jax.jit(prompt_cache), jax.jit(prefix_cache)


def _check_reader(pretrained: Any) -> None:
    """Refuse what does not go on from a past."""
    if not start_of(pretrained).continues or not hasattr(pretrained.model, "read_on"):
        raise ValueError(f"a trained prompt is read by decoder-only models of text, a {name_of(pretrained)} is another")


def _count(config: dict[str, Any], name: str, folder: Path) -> int:
    found = config.get(name)
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"{name} must be a positive number, {folder / ADAPTER} has {found!r:.60}")
    return found
