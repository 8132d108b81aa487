"""A model with its published config and processors: a pytree, and a function of Hugging Face's inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Shaped

from flax_transformer.hub.adapter_choice import Names, choice_of, merged
from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.check import check_embedded, check_ids, check_key, check_pixels, check_shapes, poisoned
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import EMBEDDED, Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.registry import find_family
from flax_transformer.hub.unused import Unused
from flax_transformer.listing import listed
from flax_transformer.nn.adapted import choose_adapter, choosing_rows
from flax_transformer.nn.module import labels_or
from flax_transformer.ops import capture
from flax_transformer.ops.eager_call import kept
from flax_transformer.ops.platform import platform
from flax_transformer.order import Part
from flax_transformer.parallel import path_name

ELSEWHERE = {
    "train": "key=jax.random.key(0) in a call asks for dropout",
    "eval": "without a key in a call there is no dropout",
    "save_pretrained": "hub.save(pretrained, folder) writes what transformers opens",
    "from_pretrained": "hub.load(folder) loads one",
    "parameters": "it is a pytree of them: jax.tree.leaves(pretrained)",
    "params": "it is a pytree of them: jax.tree.leaves(pretrained)",
    "state_dict": "it is a pytree: jax.tree_util.tree_leaves_with_path(pretrained)",
    "num_parameters": "sum(leaf.size for leaf in jax.tree.leaves(pretrained)) counts them",
    "to": "hub.load(folder, dtype=…, mesh=…) says where and in which numbers",
    "half": "hub.load(folder, dtype='float16') says in which numbers",
    "forward": "pretrained(…) calls it",
    "apply": "pretrained(…) calls it",
    "encode": "flax_transformer.task.embedding.embed(pretrained, texts) gives their vectors",
    "init": "hub.load(folder) has parameters, and Lenient(initialise=…) makes some new",
    "get_text_features": "pretrained(input_ids=…).text_embeds are they, of length 1",
    "get_image_features": "pretrained(pixel_values=…).image_embeds are they, of length 1",
    "resize_token_embeddings": "hub.resize_token_embeddings(pretrained, count) gives the checkpoint with so many",
    "generation_config": "pretrained.generation has its fields",
    "set_adapter": "pretrained.choose(name) computes with an adapter that hub.load(…, adapters={name: …}) holds",
    "disable_adapter": "pretrained.choose(None) computes without",
    "load_adapter": "hub.hold_adapters(pretrained, {name: folder}) holds adapters by name",
    "merge_and_unload": "pretrained.merged(name) is a checkpoint like any other",
}
"""What to type instead, of words that `transformers` has."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Pretrained:
    """`pretrained(input_ids=…, attention_mask=…).logits`; `pretrained.model` is our module underneath.

    Its leaves are the model's parameters; config and tokenizer are static.
    """

    model: Any
    config: Fields = field(metadata={"static": True})
    """Everything in config.json; `architectures[0]` says what the model is."""
    tokenizer: Any = field(default=None, metadata={"static": True})
    """A `HubTokenizer`, or None where the checkpoint has none; one that cannot be read says so where it is used."""
    generation: Fields = field(default=Fields("{}"), metadata={"static": True})
    """Everything in generation_config.json."""
    processor: Any = field(default=None, metadata={"static": True})
    """An `ImageProcessor`, which makes `pixel_values` of images, a `AudioProcessor`, which makes `input_features` or
    `input_values` of recordings, or None where the checkpoint has none."""
    unused: Unused = field(default=Unused(), metadata={"static": True})
    """Stored tensors that the model does not use, which `hub.save` writes again."""
    adapters: tuple[str, ...] = field(default=(), metadata={"static": True})
    """Names of the adapters that are held beside the kernels; see `hub.hold_adapters`."""

    layer_order = (Part("model"),)

    def __repr__(self) -> str:
        """Return what it is in a few lines; `print(pretrained.model)` says all."""
        leaves = jax.tree.leaves(self.model)
        kinds = dict.fromkeys(str(leaf.dtype) for leaf in leaves if hasattr(leaf, "dtype"))
        count = sum(getattr(leaf, "size", 1) for leaf in leaves)
        named = self.config.get("architectures") or ["no architecture"]
        return "\n".join([
            f"Pretrained {named[0]}, model_type {self.config.get('model_type')}",
            f"  parameters: {count:,} in {len(leaves)} arrays, {listed(kinds)}",
            f"  tokenizer: {self.tokenizer!r:.200}",
            f"  processor: {self.processor!r:.200}",
            *([f"  adapters: {listed(self.adapters)}"] if self.adapters else []),
        ])  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        hint = f"; {ELSEWHERE[name]}" if name in ELSEWHERE else ""
        raise AttributeError(f"a Pretrained has no {name!r}{hint}")

    @property
    def family(self) -> Family:
        """The family of checkpoints it belongs to."""
        return find_family(self.config)[0]

    @property
    def architecture(self) -> Architecture:
        """What stands for the class of `transformers` that is its own."""
        return find_family(self.config)[1]

    @kept
    def decoder(self) -> Any:
        """The model, laid out for the decoding loops of this platform; on a CPU a copy, which is kept."""
        if (held := self.__dict__.get("_held")) is not None:
            return choose_adapter(held[0].decoder, held[1])
        if platform() != "cpu" or isinstance(jax.tree.leaves(self.model)[0], jax.core.Tracer):
            return self.model
        return jax.jit(type(self.model).for_decoding)(self.model)

    def choose(self, adapter: Names) -> "Pretrained":
        """Return the checkpoint that computes with one of its adapters, or in each row of its inputs with another.

        The choice is among the leaves: all names share the programs that one has compiled, and so do all lists of as
        many rows. A list goes with inputs of as many rows, in calls and in `generate`.

        Args:
          adapter: a name, None for none, or a list of these.

        Raises:
          ValueError: a name that no adapter has.
        """
        choice = choice_of(adapter, self.adapters)
        chosen = replace(self, model=choose_adapter(self.model, choice))
        chosen.__dict__["_held"] = self.__dict__.get("_held", (self,))[0], choice
        return chosen

    def merged(self, adapter: str | None = None) -> "Pretrained":
        """Return the checkpoint with one of its adapters in its kernels, or with none, and no other beside them.

        Raises:
          ValueError: a name that no adapter has.
        """
        index = int(choice_of(adapter, self.adapters))
        model = jax.jit(partial(merged, index=None if index < 0 else index))(self.model)
        return replace(self, model=model, adapters=())

    def check_rows(self, rows: int) -> None:
        """Refuse inputs of another number of rows than have chosen adapters.

        Raises:
          ValueError: says how many.
        """
        choosing = choosing_rows(self.model) if self.adapters else None
        if choosing is not None and choosing != rows:
            raise ValueError(f"as many rows as have chosen adapters must be given, {choosing}, got {rows}")

    @cached_property
    def rows(self) -> dict[str, int]:
        """Of every input that is looked up in a table of the model: how many rows that has."""
        pairs = jax.tree_util.tree_leaves_with_path(self.model)
        leaves = [(path_name(path).removesuffix(".values"), leaf) for path, leaf in pairs]  # also of few bits
        tables = {name: f"{table}.embedding" for name, table in self.family.looked_up.items()}
        found = {name: [pair for pair in leaves if pair[0].endswith(table)] for name, table in tables.items()}
        for name, each in found.items():  # a source may have a table of its own
            each.sort(key=lambda pair: ("source_embedding." in pair[0]) == name.startswith("decoder_"))
        return {name: each[0][1].shape[-2] for name, each in found.items() if each}

    @property
    def vocabulary(self) -> int | None:
        """How many tokens it knows; None for a model without a table of them."""
        return self.rows.get("input_ids")

    def check_ids(self, name: str, ids: Any) -> None:
        """Refuse ids that the model does not know: a lookup would give NaN, or for negative ids another row.

        Ids that are on a device are waited for; tracers are let through.

        Raises:
          ValueError: says which.
        """
        check_ids(name, ids, self.rows)

    @labels_or
    def __call__(
        self,
        *given: Shaped[Array | np.ndarray, "..."] | Sequence | None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        interpolate_pos_encoding: bool | None = None,
        key: PRNGKeyArray | None = None,
        **inputs: Shaped[Array | np.ndarray, "..."] | Sequence | None,
    ) -> ModelOutput:
        """Run the model on ids [B, T], embeddings [B, T, D] or images [B, C, H, W]; compiled, usable in transforms.

        Args:
          given: the first inputs, by position: `architecture.inputs.order`.
          output_hidden_states: also give what every layer is given, and the last hidden states.
          output_attentions: also give every layer's attention weights.
          interpolate_pos_encoding: for those who are used to it; positions are resampled for images of any size.
          key: for dropout; None means none.
          inputs: those of `architecture.inputs`; see `Inputs`.

        Raises:
          ValueError: an input of another name or shape, ids that the model has not, more of them than it has positions,
            or rows that cannot be classified. Where ids are not known yet, in a transform, NaN comes of them instead.
        """
        check_key(key)
        inputs = {
            name: value
            for name, value in self.architecture.inputs.named(given, inputs).items()
            if value is not None and not (name == "return_dict" and value is True)
        }
        if interpolate_pos_encoding and "pixel_values" not in self.architecture.inputs.names:
            raise ValueError(f"interpolate_pos_encoding is of images, a {self.config['architectures'][0]} reads none")
        self.architecture.inputs.check(self.config["architectures"][0], inputs)
        for name in inputs:
            if name.endswith("_ids"):
                self.check_ids(name, inputs[name])
        if EMBEDDED in inputs:
            check_embedded(inputs[EMBEDDED], self.model)
        if self.architecture.prepare is not None:
            inputs = self.architecture.prepare(inputs, self.config)
        given = Inputs(**{name: jnp.asarray(value) for name, value in inputs.items()})
        check_shapes(given)
        for leaf in jax.tree.leaves(given) if self.adapters else ():
            if leaf.ndim and leaf.shape[0] > 1:  # one row may be of all, as positions are
                self.check_rows(leaf.shape[0])
        several = self.architecture.inputs.several or self.architecture.inputs.frames
        check_pixels(given, self.config, several=several)
        if self.architecture.check is not None:
            self.architecture.check(given, self.config)
        names = self.architecture.marks * output_hidden_states + ("attention_weights",) * output_attentions
        return _call(self, given, key, names=names)

    def generate(self, *inputs: Any, **settings: Any) -> Array:
        """Generate token ids: see `hub.generate.generate`, and `hub.speech.generate` for models that read audio."""
        from flax_transformer.hub import generate, speech

        chosen = speech if "audio" in self.architecture.inputs.reads else generate
        return chosen.generate(self, *inputs, **settings)


@partial(jax.jit, static_argnames="names")
def _call(pretrained: Pretrained, inputs: Inputs, key: PRNGKeyArray | None, *, names: tuple[str, ...]) -> ModelOutput:
    call, fields, rows = pretrained.architecture.call, pretrained.config, pretrained.rows
    inputs = poisoned(inputs, rows)
    if "token_type_ids" not in rows:
        inputs = replace(inputs, token_type_ids=None)

    def run(model, inputs, key):
        return call(model, inputs, key, fields)

    seen = {name: capture(run, name)(pretrained.model, inputs, key)[1] for name in names}
    output = run(pretrained.model, inputs, key)
    return replace(output, **pretrained.architecture.layers(seen, output)) if seen else output
