"""Folders of diffusers: a model by itself, or a pipeline's Transformer, with scheduler and autoencoder beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flax_transformer.decode.diffusion import DDIM, Euler, Sampler
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.hub.registry import families
from flax_transformer.ops.diffusion import SCALE, NoiseSchedule

PIPELINE = "model_index.json"
SCHEDULER = "scheduler_config.json"
CLASS = "_class_name"
BETAS = {"linear": "linear", "squaredcos_cap_v2": "cosine"}
"""diffusers' names of schedules, and ours."""
OURS = ("model_type", "architectures", "dtype")
"""Fields that diffusers has not."""
FLOW = "FlowMatchEulerDiscreteScheduler"


class DiffusersFolder(NamedTuple):
    """What there is of a Transformer in such a folder."""

    fields: Fields
    """config.json's, with the `model_type` and `architectures` that stand for its class."""
    transformer: Path
    """The folder of its tensors."""
    scheduler: dict[str, Any]
    """The fields of scheduler_config.json; empty where there is none."""


def is_diffusers(folder: Path) -> bool:
    """Return whether diffusers wrote a folder, of a model or of a pipeline."""
    if (folder / PIPELINE).is_file():
        return True
    return (folder / CONFIG).is_file() and CLASS in read_json(folder / CONFIG)


def open_diffusers(folder: Path) -> DiffusersFolder:
    """Open a folder of diffusers; no tensor is read yet.

    Raises:
      FileNotFoundError: a pipeline without the folder of its Transformer.
      ValueError: a model of another class than those that are read.
    """
    pipeline = read_json(folder / PIPELINE) if (folder / PIPELINE).is_file() else {}
    inside = folder / "transformer" if pipeline else folder
    if pipeline and not inside.is_dir():
        raise ValueError(
            f"{folder} is a {pipeline.get(CLASS)!r:.60} of diffusers, of which the folder `transformer` is read, "
            "and it has none"
        )
    fields = with_model_type(read_json(inside / CONFIG))
    if "model_type" not in fields:
        name = fields.get(CLASS)
        raise ValueError(
            f"{inside / CONFIG} is of a {name!r:.60} of diffusers; of these DiTTransformer2DModel and "
            "AutoencoderKL are read"
        )
    named = pipeline.get("id2label")
    if isinstance(named, dict) and len(named) == fields.get("num_embeds_ada_norm"):
        fields["id2label"] = named
    places = (folder / "scheduler" / SCHEDULER, inside / SCHEDULER)
    scheduler = next((read_json(file) for file in places if file.is_file()), {})
    return DiffusersFolder(Fields.of(fields), inside, scheduler)


def autoencoder_folder(folder: Path) -> Path | None:
    """Return the folder of a pipeline's autoencoder, which makes images of latents; None where there is none."""
    found = folder / "vae"
    return found if (folder / PIPELINE).is_file() and (found / CONFIG).is_file() else None


def with_model_type(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json, of one that diffusers wrote with `model_type` and `architectures` too."""
    known = {name: kind for kind, family in families().items() for name in family.architectures}
    name = config.get(CLASS)
    if "model_type" in config or not isinstance(name, str) or name not in known:
        return dict(config)
    return {**config, "model_type": known[name], "architectures": [name]}


def without_model_type(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as diffusers keeps them, which takes its class's own alone, of a config that names one."""
    return {name: value for name, value in config.items() if CLASS not in config or name not in OURS}


def scheduler_fields(sampler: Sampler) -> dict[str, Any]:
    """Return scheduler_config.json of a sampler, as diffusers has it.

    Raises:
      ValueError: a sampler that is none of diffusers'.
    """
    if isinstance(sampler, Euler):
        return {CLASS: FLOW, "num_train_timesteps": SCALE, "shift": 1.0}
    if not isinstance(sampler, DDIM):
        raise ValueError(f"a scheduler is written of DDIM or Euler, got {type(sampler).__name__}")
    schedule = sampler.schedule
    return {
        CLASS: "DDIMScheduler",
        "num_train_timesteps": schedule.steps,
        "beta_schedule": next(theirs for theirs, ours in BETAS.items() if ours == schedule.kind),
        "beta_start": schedule.first,
        "beta_end": schedule.last,
        "prediction_type": sampler.predicts,
        "clip_sample": sampler.clip is not None,
        "clip_sample_range": sampler.clip or 1.0,
        "set_alpha_to_one": True,
        "timestep_spacing": "trailing",
    }


def read_sampler(fields: Mapping[str, Any], steps: int) -> Sampler:
    """Return how a checkpoint makes samples: by DDIM, or Euler's method of a flow.

    Args:
      fields: of scheduler_config.json, of any scheduler of the same process.
      steps: calls of the model.

    Raises:
      ValueError: no fields, or a process that is not supported; steps that are not.
    """
    if not fields:
        raise ValueError(f"samples take a {SCHEDULER}, which says what a model was trained by, and there is none")
    known = Fields.of(dict(fields))
    if known.get(CLASS) == FLOW:
        known.only(num_train_timesteps=SCALE, shift=1.0, use_dynamic_shifting=False)
        return Euler(steps=steps)
    name = known.get("beta_schedule", "linear")
    if name not in BETAS or known.get("trained_betas") is not None:
        raise ValueError(f"{SCHEDULER} has beta_schedule={name!r:.60}; supported are {', '.join(BETAS)}")
    predicts = known.get("prediction_type", "epsilon")
    if predicts not in ("epsilon", "v_prediction", "sample"):
        raise ValueError(
            f"{SCHEDULER} has prediction_type={predicts!r:.60}; supported are epsilon, v_prediction and sample"
        )
    schedule = NoiseSchedule(
        kind=BETAS[name], steps=known.integer("num_train_timesteps", 1000), first=known.number("beta_start", 1e-4),
        last=known.number("beta_end", 0.02),
    )  # fmt: skip
    clip = known.number("clip_sample_range", 1.0) if known.flag("clip_sample", True) else None
    return DDIM(steps=steps, schedule=schedule, predicts=predicts, clip=clip)
