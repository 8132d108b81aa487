"""A config.json as its library keeps it, and as the families here read it, with `model_type` and `architectures`."""

from collections.abc import Mapping
from typing import Any

from flax_transformer.hub import diffusers_folder, timm_folder


def with_model_type(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json, of one that timm or diffusers wrote with `model_type` and `architectures`.

    Raises:
      ValueError: an architecture of timm's that is not read.
    """
    if timm_folder.is_timm(config):
        return timm_folder.with_model_type(config)
    return diffusers_folder.with_model_type(config)


def without_model_type(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as the library keeps them whose model it is."""
    return timm_folder.without_model_type(diffusers_folder.without_model_type(config))
