"""What a family of checkpoints is: its config fields, its tables and its architectures, one value a family."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from flax_transformer.hub.call import layers_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import TEXT, Signature
from flax_transformer.hub.table import Table, under

LOOKED_UP = {
    "input_ids": "embedding.token",
    "decoder_input_ids": "embedding.token",
    "token_type_ids": "embedding.type",
    "position_ids": "embedding.position",
}
"""Inputs, and the table in which a model looks them up."""


USES = {
    "text-generation": "write on from a prompt",
    "text2text-generation": "write in answer to a source",
    "mask-predict": "write in answer to a source, all tokens at once",
    "ctc-generation": "write in answer to a source, in one pass",
    "automatic-speech-recognition": "write speech down",
    "fill-mask": "fill in masks",
    "next-sentence-prediction": "tell whether one sentence follows another",
    "classification": "classify",
    "token-classification": "label words",
    "question-answering": "answer questions",
    "multiple-choice": "choose among answers",
    "replaced-token-detection": "tell replaced tokens",
    "object-detection": "detect objects",
    "image-segmentation": "tell the class of every pixel",
    "image-to-image": "turn images into others",
    "retrieval": "match images and texts",
    "late-interaction": "compare texts token by token",
    "visual-question-answering": "answer questions about images",
    "visual-reasoning": "tell whether a text is true of its images",
    "reinforcement-learning": "choose actions",
    "image-generation": "generate images",
    "image-reconstruction": "restore images from latents",
    "frame-classification": "tell the class of every stretch of a recording",
    "speaker-verification": "tell speakers apart",
    "contrastive-pretraining": "tell masked stretches of a recording from others",
    "feature-maps": "give feature maps",
    "feature-extraction": "give hidden states",
    "sentence-similarity": "compare sentences",
    "passage-retrieval": "find passages that answer questions",
}
"""What models can do: the word by which an architecture says so, and the one for people. What a model reads is said by
its inputs: to fill in masks is to guess tokens of a text, or patches of an image."""


@dataclass(frozen=True)
class Architecture:
    """One class of `transformers`: which model of ours it is, and how it is called."""

    config: Callable[[Fields], Any]
    """`config(fields)`: the config of our model."""
    call: Callable[..., Any]
    """`call(model, inputs, key, fields) -> ModelOutput`."""
    head: Table = ()
    """Rows beside the backbone's."""
    writes: Callable[[Any], dict[str, Any]] | None = None
    """`writes(config)`: the fields of config.json that say what is beside the backbone; None: there are none."""
    at: str = ""
    """Where the backbone is in our model, with a dot at its end."""
    base: bool = False
    """The backbone alone, whose tensors have no prefix."""
    prefix: str | None = None
    """Before the names of the backbone's tensors, where it is not the family's."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that a checkpoint of a larger class may have besides, for which there is no use here."""
    uses: tuple[str, ...] = ()
    """What the model can do: see `USES`."""
    inputs: Signature = TEXT
    """What it is given: `TEXT`, `TEXT_TO_TEXT`, `PICTURES`, or a `Signature` of its own."""
    marks: tuple[str, ...] = ("hidden_states",)
    """Names of the marked values that `layers` makes hidden states of."""
    layers: Callable[..., dict[str, Any]] = layers_of
    """`layers(seen, output)`: hidden states and attention weights, by the names that its class has for them."""
    check: Callable[..., None] | None = None
    """`check(inputs, fields)` refuses what a call, which is compiled, cannot."""
    generation_fields: Callable[[Fields], Fields] | None = None
    """`generation_fields(fields)`: config.json as generation reads it, where a class has its marks elsewhere and reads
    no generation_config.json."""
    prepare: Callable[[Mapping[str, Any], Fields], Mapping[str, Any]] | None = None
    """`prepare(inputs by name, fields)`: the inputs with what a call, whose shapes are fixed, must know of their
    values."""
    dot: bool = False
    """Whether vectors that it gives are compared by their inner products, and not by cosines."""
    buffers: Callable[[Fields], Mapping[str, Any]] | None = None
    """`buffers(fields)`: tensors that its class stores beside the parameters and computes of config.json, or does not
    use; those of a checkpoint that is read stay as they were stored."""
    asks: str = ""
    """The class whose vectors of passages are searched by its vectors of questions, where it is another."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """Of a class of our own with two encoders, `question` and `passage`: which class each part is alone."""

    def __post_init__(self):
        if unknown := set(self.uses) - set(USES):
            raise ValueError(f"uses must be among {', '.join(USES)}, got {', '.join(sorted(unknown))}")

    def backbone_of(self, config: Any) -> Any:
        """Return the config of the backbone that is in a model's."""
        return attrgetter(self.at.rstrip("."))(config) if self.at else config


@dataclass(frozen=True)
class Family:
    """All checkpoints of one `model_type`."""

    model_type: str
    architectures: Mapping[str, Architecture]
    table: Table
    """Of the backbone, without prefixes."""
    write: Callable[[Any], dict[str, Any]]
    """`write(config of the backbone)`: the fields of config.json that say the same."""
    prefix: str = ""
    """Before the names of the backbone's tensors, with a dot at its end, except in a checkpoint of the base class."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that say nothing: buffers that the model computes."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Patterns of names in old checkpoints, and what stands there now (`re.sub`)."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are another one again, by tying: name of the copy, name of the one in the table."""
    writes_copies: bool = False
    """Whether these copies are written too."""
    weights: str = "model"
    """How the names of files of tensors begin."""
    generation: str = "generation_config.json"
    """The file that says how such models generate."""
    settled: Callable[[Fields, Collection[str]], Fields] | None = None
    """`settled(fields, names of the tensors)`: the fields, where it takes the tensors to tell what the model is."""
    spelled: Callable[[str, Fields], str] | None = None
    """`spelled(name, fields)`: what `transformers` calls a tensor of the table where such a config.json stands beside
    it, if not that; `renamed` reads it."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Patterns of the table's names, and what the modules of `transformers` are called, where files keep older names
    (`re.sub`); `renamed` reads these."""
    adopt: Callable[[Any], Any] | None = None
    """`adopt(model)`: a model that computes the same with its parameters in the family's order, or the model itself."""
    tokens: str = ""
    """Object of config.json in which ids of special tokens stand; empty: they stand by themselves."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Ids of special tokens that it calls otherwise besides: its name, and the usual one."""
    kin: str = ""
    """Another family, as whose architectures checkpoints of this one can be read too, tensors that these have no use
    for ignored: a masked autoencoder as a ViT."""
    composed: Callable[[Fields], "Family"] | None = None
    """`composed(fields)`: the family as it is for one config.json, where its parts are of families that this names."""
    looks: Callable[[], "Family"] | None = None
    """`looks()`: the family of its decoders that look at given states, whose config.json has `add_cross_attention`."""
    looked_up: Mapping[str, str] = field(default_factory=lambda: LOOKED_UP)
    """Inputs, and the table of ours in which they are looked up, where a model has it."""

    def prefix_of(self, architecture: Architecture) -> str:
        """Return what is before the names of the backbone's tensors in one architecture."""
        own = self.prefix if architecture.prefix is None else architecture.prefix
        return "" if architecture.base else own

    def rows(self, architecture: Architecture) -> Table:
        """Return the table of one architecture, prefixes and all."""
        return under(self.table, architecture.at, self.prefix_of(architecture)) + architecture.head
