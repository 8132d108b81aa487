"""The checkpoint that training begins with: its tokenizer or image processor, its model with a head for the data."""

from collections.abc import Mapping
from typing import Any, Literal

from flax_transformer import hub
from flax_transformer.frozen import frozen
from flax_transformer.hub.diffusers_folder import is_diffusers, open_diffusers
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import CONFIG, find_folder, read_json
from flax_transformer.hub.inputs import Signature
from flax_transformer.hub.load import GENERATION
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.open import Unreadable, open_image_processor, open_processor, open_tokenizer
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.registry import find_architecture, find_family, find_uses
from flax_transformer.hub.sentence_folder import is_sentence_folder, open_sentence_folder
from flax_transformer.hub.stored_config import with_model_type
from flax_transformer.models.head import HeadConfig
from flax_transformer.nn import EmbeddingConfig, TransformerBlockConfig
from flax_transformer.nn.config import configs_in
from flax_transformer.task.seq2seq_tokenizer import Seq2SeqTokenizer, seq2seq_tokenizer
from flax_transformer.task.spec import Spec

HEAD = (
    r"^(cls_|distillation_|pre_)?classifier", r"^class_labels_classifier", r"^bbox_predictor", r"^head\.", r"^score\.",
    r"pooler", r"^projector\.",
)  # fmt: skip
"""Tensors that a pretrained model may lack, and one that classifies, or finds objects of other classes, has."""
HEADS = {
    "fill-mask": (
        r"^cls\.predictions", r"^lm_head\.", r"^vocab_", r"^generator_", r"^head\.", r"^decoder\.(weight|bias)$",
    ),
    "automatic-speech-recognition": (r"^lm_head\.",),
    "question-answering": (r"^qa_outputs\.", r"^head\.", r"^classifier\."),
    "multiple-choice": HEAD,
}  # fmt: skip
"""The same of other uses: of one that guesses masked tokens, and of one that scores letters."""
OUTPUTS = tuple(dict.fromkeys((*HEAD, *(each for patterns in HEADS.values() for each in patterns))))
"""Tensors of any head, which a checkpoint may have that is to do something else."""


@frozen
class StartConfig:
    """How the model that a checkpoint gives is computed in training; its parameters are float32 in any case.

    It stands in a recipe where the config of a new model would, for recipes that always begin with a checkpoint.
    """

    layers: tuple[int, ...] = ()
    """Layers of the checkpoint that the model has, from 0 on, as every other of a teacher's; all of them by default."""
    compute: Literal["float32", "bfloat16", "float16"] = "float32"
    """The number format that layers compute in."""
    remat: Literal["none", "full", "attention", "dots", "offload"] = "none"
    """What the backward pass computes again rather than keeps: see `nn.REMAT`."""


def start_tokenizer(name: str) -> HubTokenizer:
    """Open the tokenizer of a checkpoint, a folder or hub id.

    Raises:
      ValueError: when it has none, or one that cannot be read.
    """
    tokenizer = start_letters(name)
    if tokenizer is None:
        raise ValueError(
            f"training begins with a checkpoint and its tokenizer, {name} has no tokenizer files: no tokenizer.json, "
            "and no others, such as Marian's source.spm, target.spm and vocab.json"
        )
    return tokenizer


def start_letters(name: str) -> HubTokenizer | None:
    """Open the tokenizer of a checkpoint that may have none, as one that is not trained for texts yet.

    Raises:
      ValueError: one that cannot be read.
    """
    folder = find_folder(name)
    tokenizer = open_tokenizer(open_sentence_folder(folder).transformer if is_sentence_folder(folder) else folder)
    if isinstance(tokenizer, Unreadable):
        tokenizer()
    return tokenizer


def stated_fields(name: str) -> Mapping[str, Any]:
    """Read what a checkpoint says it is, modules on top of it included."""
    folder = find_folder(name)
    if is_sentence_folder(folder):
        return open_sentence_folder(folder).fields
    if is_diffusers(folder):
        return open_diffusers(folder).fields
    return with_model_type(read_json(folder / CONFIG))


def start_seq2seq(name: str, language: str = "", task: str = "") -> Seq2SeqTokenizer:
    """Open the tokenizer of a checkpoint as its encoder-decoder reads and writes texts.

    Args:
      name: folder or hub id.
      language, task: see `seq2seq_tokenizer`.

    Raises:
      ValueError: as `start_tokenizer` and `seq2seq_tokenizer`.
    """
    folder = find_folder(name)
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    config = Fields.of(read_json(folder / CONFIG))
    try:
        return seq2seq_tokenizer(start_tokenizer(name), config, Fields.of(generation), language=language, task=task)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def start_audio(name: str) -> AudioProcessor:
    """Open the feature extractor of a checkpoint, a folder or hub id.

    Raises:
      ValueError: when it has none, or one that cannot be read.
    """
    processor = open_processor(find_folder(name))
    if isinstance(processor, Unreadable):
        processor()
    if not isinstance(processor, AudioProcessor):
        raise ValueError(
            f"a checkpoint must say in preprocessor_config.json how it hears audio, {name} has no feature extractor"
        )
    return processor


def start_processor(name: str) -> ImageProcessor:
    """Open the image processor of a checkpoint, a folder or hub id.

    Raises:
      ValueError: when it has none, or one that cannot be read.
    """
    processor = open_image_processor(find_folder(name))
    if isinstance(processor, Unreadable):
        processor()
    if processor is None:
        raise ValueError(
            f"a checkpoint must say in preprocessor_config.json how it sees images, {name} does not; or say it by "
            "--size, --mean and --std"
        )
    return processor


def start_inputs(name: str) -> Signature:
    """Return what a checkpoint is given, a folder or hub id."""
    return find_family(stated_fields(name))[1].inputs


def start_uses(name: str) -> tuple[str, ...]:
    """Return what a checkpoint can do, a folder or hub id."""
    return find_family(stated_fields(name))[1].uses


def load_start(name: str, spec: Spec, like: Any, *, seed: int, keep: bool = False) -> hub.Pretrained:
    """Load a checkpoint as what can do what the data ask for; a head that it lacks is new, one of another use is left
    out.

    Args:
      name: folder or hub id.
      like: a config whose rates of dropout the model gets, and whose `compute`, `remat` and `layer_drop` where they are
        not the default; None leaves the checkpoint's. A `StartConfig` may name the layers that are kept too.
      seed: of a new head.
      keep: whether parameters stay in the checkpoint's own number format; float32 otherwise, so that they can be
        trained.

    Raises:
      ValueError: a checkpoint whose family can do no such thing.
    """
    config = stated_fields(name)
    changed = {key: value for key, value in spec.fields.items() if key not in config}
    changed |= _rates(config, like) | _images(config, spec, name) | _letters(spec)
    if spec.classes:
        changed |= {"num_labels": len(spec.classes), "id2label": None}
    able = find_uses(config.get("model_type"), *spec.uses)
    own = (config.get("architectures") or [None])[0]
    reads, given = find_architecture(able[0])[1].inputs.reads, "text" if spec.image is None else "images"
    given = "audio" if spec.audio else given if spec.frames is None else "videos"
    if given not in reads:
        raise ValueError(f"the checkpoint {name} reads {' and '.join(reads)}, the data are {given}")
    lenient = hub.Lenient(
        architecture=own if own in able else able[0], config=changed, model=_computed(like) | _windowed(able[0]),
        seed=seed,
        initialise=HEAD if spec.classes else tuple(each for use in spec.uses for each in HEADS.get(use, ())),
        ignore=() if own in able else OUTPUTS,
    )  # fmt: skip
    found = hub.load(name, dtype=None if keep else "float32", lenient=lenient)
    table = _first(found.model.cfg, EmbeddingConfig)
    if table is not None and spec.vocab is not None and spec.vocab > table.vocab:
        raise ValueError(
            f"a checkpoint's model must know every token of its tokenizer, that of {name} knows {table.vocab:,} of "
            f"{spec.vocab:,}"
        )
    if isinstance(like, StartConfig) and like.layers:
        from flax_transformer.task.compression import shallow_checkpoint  # which measures, by all tasks

        return shallow_checkpoint(found, like.layers)
    return found


def _computed(like: Any) -> dict[str, Any]:
    """Find what a config says of number format, recomputation and LayerDrop that is not the default."""
    found = {}
    for name, usual in (("compute", "float32"), ("remat", "none"), ("layer_drop", 0.0)):
        values = {getattr(each, name, usual) for each in configs_in(like)} - {usual}
        if len(values) > 1:
            raise ValueError(
                f"of a checkpoint's model all layers have one {name}, got {' and '.join(sorted(map(str, values)))}"
            )
        if values:
            (found[name],) = values
    return found


def _windowed(architecture: str) -> dict[str, Any]:
    """Let the first token of a source see all others, and they it, where one that writes sees windows (LED)."""
    known = find_architecture(architecture)[1]
    windowed = "global_attention_mask" in known.inputs.takes and "text2text-generation" in known.uses
    return {"leading": 1} if windowed else {}


def _letters(spec: Spec) -> dict[str, Any]:
    """Spell the size of a new vocabulary of letters as the checkpoint's config.json does."""
    return {} if spec.letters is None else {"vocab_size": spec.letters, "pad_token_id": 0}


def _rates(config: Mapping[str, Any], like: Any) -> dict[str, float]:
    """Spell rates of dropout as the checkpoint's config.json does."""
    block, head = _first(like, TransformerBlockConfig), _first(like, HeadConfig)
    rates = {}
    if block is not None:
        dropout = (block.feedforward_residual or block.residual).dropout
        attention_dropout = block.attention.attention_dropout
        rates = {
            "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": attention_dropout,
            "dropout": dropout, "attention_dropout": attention_dropout, "dropout_rate": dropout,
            "hidden_dropout": dropout, "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": attention_dropout,
        }  # fmt: skip
    rates = {name: rate for name, rate in rates.items() if name in config}
    if head is not None:
        rates |= dict.fromkeys(("classifier_dropout", "seq_classif_dropout"), head.dropout)
    return rates


def _images(config: Mapping[str, Any], spec: Spec, name: str) -> dict[str, Any]:
    """Spell the size of the data's images as the checkpoint's config.json does."""
    if spec.image is None:
        return {}
    height, width, channels = spec.image
    known = Fields.of(config).channels or channels
    tower = next((each for each in ("vision_config", "encoder") if isinstance(config.get(each), dict)), None)
    if known != channels:
        raise ValueError(
            f"images must have as many channels as those of the checkpoint {name}, {known}, got {channels}"
        )
    size = {"image_size": height if height == width else [height, width]}
    if tower is not None and "image_size" in config[tower]:
        return {tower: {**config[tower], **size}}
    size |= {} if spec.frames is None else {"num_frames": spec.frames}
    return size if "image_size" in config else {}


def _first(config: Any, kind: type) -> Any:
    """Find the first config of a kind, at any depth."""
    return next((each for each in configs_in(config) if isinstance(each, kind)), None)
