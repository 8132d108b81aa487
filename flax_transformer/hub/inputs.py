"""What models are given, by Hugging Face's names, and which of it an architecture needs and may have.

Axes: B batch, T positions, samples or frames, C channels or mel bins, P patches, R regions, I images of a
text or frames of a video; H and W of an image.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from flax_transformer.frozen import frozen
from flax_transformer.listing import listed


@jax.tree_util.register_dataclass
@frozen
class Inputs:
    """What a model is given, under Hugging Face's names; arrays, or whatever a transform puts in their place."""

    input_ids: Any = None
    """Int [*B, T]."""
    inputs_embeds: Any = None
    """Float [*B, T, D]: embeddings in the place of `input_ids`, scaled where a model scales them, no positions."""
    attention_mask: Any = None
    """Int [*B, T]: 1 where there is a token, a sample or a frame, 0 where there is padding, on either side."""
    token_type_ids: Any = None
    """Int [*B, T]."""
    position_ids: Any = None
    """Int [*B, T]."""
    global_attention_mask: Any = None
    """Int [*B, T]: 1 where a token sees all others, and they see it, of a model that sees windows."""
    global_positions: Any = None
    """Int [*B, G]: the positions of those, −1 where a row has fewer than others; a call finds them of the mask."""
    prompt_length: Any = None
    """Int: how many tokens before each text are a prompt, of a sentence encoder that does not pool them."""
    decoder_input_ids: Any = None
    """Int [B, T]."""
    decoder_position_ids: Any = None
    """Int [B, T]: the positions of those, of a model that does not count padding; a call finds them of the ids."""
    decoder_attention_mask: Any = None
    """Int [B, T]."""
    encoder_hidden_states: Any = None
    """Float [B, S, W]: the states that a decoder by itself looks at."""
    encoder_attention_mask: Any = None
    """Int [B, S]: 1 where there is one, 0 where there is padding."""
    pixel_values: Any = None
    """Float [B, C, H, W]: images as a processor gives them; models of this package take them as [B, H, W, C].
    [B, I, C, H, W] where a row may have several, and of videos, taken as [B, I, H, W, C]."""
    pixel_mask: Any = None
    """Int [B, H, W]: 1 where there is an image, 0 where there is padding; [B, I, H, W] where a text has several."""
    pixel_attention_mask: Any = None
    """Int [B, P]: 1 where there is a patch, 0 where there is padding, of images that are given as patches."""
    spatial_shapes: Any = None
    """Int [B, 2]: how many rows and columns of patches each image has; `pixel_values` are then Float [B, P, F], patches
    line by line, each by its rows, columns and channels."""
    image_grid_thw: Any = None
    """Int [B, I, 3]: times, rows and columns of patches of the images of each row, 0 where a row has fewer than others;
    `pixel_values` are then Float [B, P, F], the patches of a row's images one after another. As a processor gives them
    they are [N, 3] and [Q, F] of all images of all rows; a call lays them out in rows."""
    mm_token_type_ids: Any = None
    """Int [B, T]: 1 where a token stands for an image, which is known of the ids."""
    visual_feats: Any = None
    """Float [B, R, F]: what a detector says of the regions that it found in an image."""
    visual_pos: Any = None
    """Float [B, R, 4]: where they are, as shares of the image: left, top, right, bottom."""
    visual_attention_mask: Any = None
    """Int [B, R]: 1 where there is a region, 0 where there is padding."""
    input_features: Any = None
    """Float [B, C, T]: the log-mel frames of recordings; models of this package take them as [B, T, C]."""
    input_values: Any = None
    """Float [B, T]: samples of recordings, as a processor gives them."""
    mask_time_indices: Any = None
    """Bool [B, S]: True where a position of a recording is masked."""
    sampled_negative_indices: Any = None
    """Int [B, S, N]: positions from which each is told, counted through all rows."""
    bool_masked_pos: Any = None
    """Bool [B, P]: True where a patch is masked."""
    kept_patches: Any = None
    """Int [B, K]: the numbers of those that are not, where a model sees no others; a call finds them of the mask."""
    noise: Any = None
    """Float [B, P]: what the order of patches is drawn by."""
    states: Any = None
    """Float [B, T, S]: what was seen at each step of an episode."""
    actions: Any = None
    """Float [B, T, A]: what was done."""
    rewards: Any = None
    """Float [B, T, 1]: what came of it."""
    returns_to_go: Any = None
    """Float [B, T, 1]: the return from each step on."""
    timestep: Any = None
    """Float [B], or one for all: how much noise images have."""
    class_labels: Any = None
    """Int [B]: the class that images are to be of; the number of classes stands for none."""
    timesteps: Any = None
    """Int [B, T]: where each step is in its episode."""

    @property
    def tokens(self) -> Any:
        """What a model of texts takes: ids, or embeddings in their place."""
        return self.input_ids if self.inputs_embeds is None else self.inputs_embeds


HINTS = {
    "labels": "it gives logits, of which optax.softmax_cross_entropy_with_integer_labels(logits, labels) is the loss",
    "train": "key=jax.random.key(0) asks for dropout, and no key for none",
    "deterministic": "key=jax.random.key(0) asks for dropout, and no key for none",
    "dropout_rng": "key=jax.random.key(0) asks for dropout, and no key for none",
    "params": "what is called is the parameters too: jax.grad(lambda p: p(…).logits.sum())(pretrained)",
    "inputs_embeds": "its embedding is part of it, and ids are what it is called with",
    "return_dict": "what it gives is taken by name",
    "use_cache": "generate keeps a cache by itself",
}
"""What to do instead, of words that `transformers` has."""
NAMES = tuple(each.name for each in dataclasses.fields(Inputs))
MODALITIES = {
    "input_ids": "text", "pixel_values": "images", "input_features": "audio", "input_values": "audio",
    "states": "trajectories", "visual_feats": "regions",
}  # fmt: skip
"""What a model reads, by the input that it needs for it, in a word for people."""


@dataclass(frozen=True)
class Signature:
    """Which inputs an architecture is given, by their names in `Inputs`."""

    needs: tuple[str, ...]
    """Those without which it is not called."""
    takes: tuple[str, ...] = ()
    """Those that it may be given besides."""
    either: bool = False
    """Whether one of those it needs will do: what has a tower for each."""
    padded: bool = False
    """Whether texts are padded to all positions there are, and padding is read as any token (SigLIP)."""
    colours: bool = False
    """Whether its tokens are the colours of pixels, which an image processor makes of images."""
    several: bool = False
    """Whether images are several of each text, [B, I, C, H, W]."""
    frames: bool = False
    """Whether its images are the frames of videos."""
    interleaved: bool = False
    """Whether images may stand among its tokens."""
    order: tuple[str, ...] = ()
    """Those that may be given by position, in the order of `forward` in `transformers`; by default the first two."""

    def __post_init__(self):
        if unknown := set(self.needs + self.takes) - set(NAMES):
            raise ValueError(f"inputs must be among {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")

    @property
    def names(self) -> tuple[str, ...]:
        """All that it may be given."""
        return self.needs + self.takes

    @property
    def reads(self) -> tuple[str, ...]:
        """What the model reads: text, images, videos, audio."""
        if self.colours or self.frames:
            return ("images",) if self.colours else ("videos",)
        found = tuple(MODALITIES[name] for name in self.needs if name in MODALITIES)
        return (*found, "images") if self.interleaved else found

    def named(self, given: tuple[Any, ...], others: Mapping[str, Any]) -> dict[str, Any]:
        """Name the inputs that are given by position, beside those given by name.

        Raises:
          ValueError: more of them than may be, or one that is given twice.
        """
        order = self.order or (self.needs + self.takes)[:2]
        if len(given) > len(order):
            raise ValueError(
                f"by position a model is given {', '.join(order)}, others by name; got {len(given)} inputs"
            )
        named = dict(zip(order, given, strict=False))
        if twice := [name for name in named if name in others]:
            raise ValueError(f"an input is given once, got {', '.join(twice)} by position and by name")
        return {**named, **others}

    def takes_alone(self, name: str) -> bool:
        """Return whether one input will do."""
        return self.needs == (name,) or (self.either and name in self.needs)

    def check(self, model: str, given: Collection[str]) -> None:
        """Demand the inputs that are needed, and no other than may be given.

        Raises:
          ValueError: says which there are, and what was given.
        """
        wrong = [name for name in given if name not in self.needs + self.takes]
        if EMBEDDED in self.takes and {"input_ids", EMBEDDED} <= set(given):
            raise ValueError(f"a {model} is given input_ids or {EMBEDDED} in their place, got both")
        missing = [name for name in self.needs if name not in given and not (name == "input_ids" and EMBEDDED in given)]
        missing = [] if self.either and len(missing) < len(self.needs) else missing
        if wrong or missing:
            hint = next((f"; {HINTS[name]}" for name in wrong if name in HINTS), "")
            perhaps = f" and perhaps {', '.join(self.takes)}" if self.takes else ""
            got = listed([*wrong, *(f"no {name}" for name in missing)])
            needed = (" or " if self.either else ", ").join(self.needs)
            raise ValueError(f"a {model} is given {needed}{perhaps}; got {got}{hint}")


EMBEDDED = "inputs_embeds"
TEXT = Signature(("input_ids",), ("attention_mask", "token_type_ids", "position_ids"))
TEXT_OR_EMBEDDED = replace(TEXT, takes=(*TEXT.takes, EMBEDDED))
LONG_TEXT = Signature(TEXT.needs, (*TEXT.takes, "global_attention_mask"))
TEXT_TO_TEXT = Signature(("input_ids",), ("attention_mask", "decoder_input_ids", "decoder_attention_mask"))
EMBEDDED_TO_TEXT = replace(TEXT_TO_TEXT, takes=(*TEXT_TO_TEXT.takes, EMBEDDED))
LONG_TEXT_TO_TEXT = Signature(TEXT_TO_TEXT.needs, (*TEXT_TO_TEXT.takes, "global_attention_mask"))
STATES_TO_TEXT = Signature(
    ("input_ids", "encoder_hidden_states"), ("attention_mask", "position_ids", "encoder_attention_mask"),
    order=("input_ids", "attention_mask"),
)  # fmt: skip
"""Of decoders that are given the states they look at."""
IMAGES = Signature(("pixel_values",))
VIDEOS = Signature(IMAGES.needs, frames=True)
TOWERS = Signature((*TEXT.needs, *IMAGES.needs), ("attention_mask", "position_ids"), either=True)
PADDED_TOWERS = Signature(TOWERS.needs, TOWERS.takes, either=True, padded=True)
AUDIO = Signature(("input_features",), ("attention_mask",), order=("input_features",))
SAMPLES = Signature(("input_values",), ("attention_mask",))
AUDIO_TO_TEXT = Signature(
    ("input_features", "decoder_input_ids"), ("attention_mask", "decoder_attention_mask"),
    order=("input_features", "attention_mask", "decoder_input_ids", "decoder_attention_mask"),
)  # fmt: skip
TYPES_FIRST = replace(TEXT, order=("input_ids", "token_type_ids"))
"""Of classes that choose, whose `forward` has token types before the mask."""
COLOURS = Signature(TEXT.needs, TEXT.takes, colours=True)
INTERLEAVED = Signature(
    ("input_ids",), ("attention_mask", "pixel_values", "image_grid_thw", "mm_token_type_ids"),
    order=("input_ids", "attention_mask"), interleaved=True,
)  # fmt: skip
