"""The README.md of a checkpoint: a model card, as the hub reads it, of what a run's folder says."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from flax_transformer import __version__
from flax_transformer.hub import Pretrained
from flax_transformer.hub.diffusers_folder import CLASS
from flax_transformer.hub.sentence import is_sentence
from flax_transformer.report.run import is_number
from flax_transformer.task.description import config_lines
from flax_transformer.text_table import align
from flax_transformer.train.folder import RunFolder, read_config
from flax_transformer.train.state import parameter_count

CARD = "README.md"
TAGS = {
    ("classification", "text"): "text-classification",
    ("classification", "images"): "image-classification",
    ("classification", "audio"): "audio-classification",
    ("classification", "videos"): "video-classification",
    ("text2text-generation", "images"): "image-to-text",
    ("text-generation", "images"): "image-text-to-text",
    ("text2text-generation", "audio"): "automatic-speech-recognition",
    ("image-generation", "images"): "unconditional-image-generation",
    ("retrieval", "images"): "zero-shot-image-classification",
}
"""The hub's words where they depend on what is read; others are ours."""
OF_HUB = (
    "text-generation", "text2text-generation", "automatic-speech-recognition", "fill-mask", "token-classification",
    "question-answering", "multiple-choice", "object-detection", "image-segmentation", "image-to-image",
    "visual-question-answering", "reinforcement-learning", "feature-extraction", "sentence-similarity",
)  # fmt: skip
"""Uses that the hub has the same word for."""
BESIDE = ("step", "split")


def pipeline_tag(pretrained: Pretrained) -> str | None:
    """Return the hub's word for what a checkpoint does; None where it has none."""
    known = pretrained.architecture
    for use in known.uses:
        for reads in reversed(known.inputs.reads):
            if (use, reads) in TAGS:
                return TAGS[use, reads]
        if use in OF_HUB:
            return use
    return None


def library_of(pretrained: Pretrained) -> str:
    """Return which library beside this one opens a checkpoint; this one where it is the only one."""
    if is_sentence(pretrained.config):
        return "sentence-transformers"
    if CLASS in pretrained.config:
        return "diffusers"
    return "flax_transformer" if pretrained.config["model_type"] in ("cct", "mixer") else "transformers"


def metadata(pretrained: Pretrained, name: str, *, base: str = "", data: str = "", test: Mapping[str, Any]) -> Any:
    """Return what a card says to machines.

    Args:
      name: of the model.
      base: the hub id or folder that training began with; a folder is not told.
      data: what it was tested on, in a word.
      test: metrics by name; what is no number is left out.
    """
    from huggingface_hub import EvalResult, ModelCardData

    tag = pipeline_tag(pretrained)
    measured = [
        EvalResult(
            task_type=tag or "other", dataset_type=data.lower() or "own", dataset_name=data or "own data",
            dataset_split="test", metric_type=metric, metric_name=metric, metric_value=value,
        )
        for metric, value in test.items()
        if metric not in BESIDE and is_number(value)
    ]  # fmt: skip
    return ModelCardData(
        base_model=base if base and not Path(base).exists() else None,
        library_name=library_of(pretrained),
        pipeline_tag=tag,
        tags=["jax", "flax", "flax_transformer"],
        model_name=name,
        eval_results=measured or None,
    )


def card_text(pretrained: Pretrained, name: str, config: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """Return what a card says to people.

    Args:
      config: the run's config.json.
    """
    made = pretrained.config["architectures"][0]
    step = f" in {test['step']:,} steps" if "step" in test else ""
    began = f" It began with {Path(str(config['init'])).name}." if config.get("init") else ""
    seed = config.get("train", {}).get("seed", 0)
    rows = [(metric, f"{value:.5g}") for metric, value in test.items() if metric not in BESIDE and is_number(value)]
    parts = {part: config[part] for part in ("data", "objective", "optimizer", "train") if config.get(part)}
    lines = [_without_paths(line) for line in config_lines(parts)]
    how = f"trained by flax_transformer {__version__} on JAX {jax.__version__}{step} (seed {seed})"
    return "\n".join([
        f"# {name}", "",
        f"A {made} of {parameter_count(pretrained.model):,} parameters, {how}.{began}", "",
        *(["## Results", "", "On the test data:", "", "```text", align(rows, "lr"), "```", ""] if rows else []),
        "## How it was trained", "", "```text", *lines, "```", "",
        "## Use", "", "```python", *USE, "```", "",
    ])  # fmt: skip


USE = "from flax_transformer import hub", "", 'pretrained = hub.load("FOLDER or OWNER/NAME")', "print(pretrained)"
"""Lines of Python."""


_PATH = re.compile(r"(?<![\w.:/~])(?:~|\.\.)?/[^\s'\",\]]*")
"""A path from the root, the home folder or the folder above, also within a list."""


def _without_paths(line: str) -> str:
    """Leave out where files lie on the machine that trained: only the name of the last folder is told."""
    name, _, value = line.partition(": ")
    if value.startswith(("/", "~", "..")):  # all of it, spaces too
        return f"{name}: {Path(value).name}"
    return _PATH.sub(lambda found: Path(found[0]).name, line)


def write_card(pretrained: Pretrained, folder: RunFolder, export: Path, test: Mapping[str, Any]) -> None:
    """Write the card of a finished run beside its checkpoint."""
    from huggingface_hub import ModelCard

    config, name = read_config(folder), folder.root.resolve().name
    data = config.get("data") if isinstance(config.get("data"), dict) else {}
    named = Path(str(data["root"])).name if data.get("root") else str(data.get("type", "")).split(":")[-1]
    said = metadata(pretrained, name, base=config.get("init") or "", data=named, test=test)
    text = card_text(pretrained, name, config, test)
    ModelCard(f"---\n{said.to_yaml()}\n---\n\n{text}").save(export / CARD)


def license_card(export: Path, *, license: str = "", languages: Sequence[str] = ()) -> None:
    """Say the licence and the languages in a checkpoint's card, which is made where there is none."""
    from huggingface_hub import ModelCard, ModelCardData

    file = export / CARD
    made = f"---\n{ModelCardData(tags=['jax', 'flax_transformer']).to_yaml()}\n---\n\n# {export.resolve().name}\n"
    card = ModelCard.load(file) if file.is_file() else ModelCard(made)
    if license:
        card.data.license = license
    if languages:
        card.data.language = list(languages)
    card.save(file)
