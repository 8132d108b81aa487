"""Settings of Hugging Face's `generate`: their names and meaning, where they come from, what they mean to our loops."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from flax_transformer.decode import Beam, Constraints, Contrastive, Greedy, PowerPenalty, Sampling, SourceRules, room
from flax_transformer.frozen import frozen
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import read_json
from flax_transformer.listing import listed
from flax_transformer.nn.quantized import ACTIVATIONS
from flax_transformer.ops.sampling import Cutoff
from flax_transformer.train.config import fits

Tokens = int | tuple[int, ...] | None

UNSUPPORTED = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "remove_invalid_values": False,
    "guidance_scale": None,
    "dola_layers": None,
}
"""Settings of a generation_config.json that change what is generated, and the value that changes nothing."""

DEFAULT = 20
"""New tokens, where nothing says how many."""


@frozen
class Settings:
    """How to generate, under the names and with the meaning Hugging Face's `generate` gives them.

    They lie side by side, many as they are, since a generation_config.json has them so.
    """

    max_new_tokens: int | None = None
    """Generated tokens at most; 20, or fewer where the positions end, where `max_length` does not say either."""
    max_length: int | None = None
    """The same, with the prompt counted in."""
    min_new_tokens: int = 0
    min_length: int = 0
    """As `min_new_tokens`, with the prompt counted in."""
    num_beams: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = 50
    """Of sampling; 0 or None for no limit."""
    top_p: float = 1.0
    min_p: float | None = None
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    """0 for none, as `epsilon_cutoff`."""
    top_h: float | None = None
    penalty_alpha: float | None = None
    """α of contrastive search among `top_k` tokens, without sampling and beams; see `decode.contrastive_search`."""
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    """Of an encoder-decoder the tokens of the source, of others those of the prompt; and so with n-grams."""
    encoder_no_repeat_ngram_size: int = 0
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Token sequences, each with what is added to its last token's logits."""
    exponential_decay_length_penalty: tuple[int, float] | None = None
    """Generated tokens after which an end token becomes more likely, and by what factor with each."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    renormalize_logits: bool = False
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end a row; they stay at its end."""
    prompt_lookup_num_tokens: int | None = None
    """Tokens that are proposed at a time where the last ones occurred before; None: nothing is looked up."""
    max_matching_ngram_size: int = 2
    """Last tokens that are looked up; where they did not occur, fewer are."""
    num_assistant_tokens: int = 5
    """Tokens that an `assistant_model` proposes at a time, always as many: 20 in Hugging Face, where fewer are of which
    it is not certain."""
    cache: str | None = None
    """What keys and values of earlier tokens are rounded to, by `nn.quantize_cache`; None: they are not. Hugging Face
    has `cache_implementation="quantized"` for it."""
    pad_token_id: int | None = None
    """None, or a negative number, where there is none."""
    bos_token_id: int | None = None
    eos_token_id: Tokens = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: Tokens = None

    def __post_init__(self):
        for name in (
            "max_new_tokens", "max_length", "num_beams", "num_return_sequences", "prompt_lookup_num_tokens",
            "max_matching_ngram_size", "num_assistant_tokens",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.cache not in (None, *ACTIVATIONS):
            raise ValueError(f"cache must be {' or '.join(ACTIVATIONS)}, got {self.cache!r}")
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"sampling has no beams, got do_sample=True, num_beams={self.num_beams}")
        if not 1 <= self.num_return_sequences <= (10**6 if self.do_sample else self.num_beams):
            raise ValueError(
                "as many sequences can be returned as there are beams, or any number when sampling, got "
                f"num_return_sequences={self.num_return_sequences}, num_beams={self.num_beams}"
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """The end tokens."""
        return _several(self.eos_token_id)

    @property
    def searches(self) -> bool:
        """Whether a token is chosen by contrastive search."""
        return bool(self.penalty_alpha and (self.top_k or 0) > 1) and not self.do_sample and self.num_beams == 1

    @property
    def padding(self) -> int | None:
        """The padding token, if there is one."""
        return self.pad_token_id if self.pad_token_id is not None and self.pad_token_id >= 0 else None

    @property
    def inferred(self) -> int | None:
        """The token that must be padding where a prompt has it, as it is no end token too."""
        return None if self.padding in self.ends else self.padding

    @property
    def filler(self) -> int:
        """What fills up finished rows: the padding token, or the first end token where there is none.

        In beam search a padding token 0 counts as none, as it does in Hugging Face.
        """
        pad = self.padding
        beams = self.num_beams > 1 and self.ends
        return self.ends[0] if self.ends and (pad is None or (beams and pad == 0)) else (pad or 0)

    def new_tokens(self, prompt: int, positions: int | None = None) -> int:
        """Return the number of tokens to generate at most after a prompt of that many, of so many positions."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        limit = self.max_length
        if limit is None:
            limit = prompt + DEFAULT if positions is None else min(prompt + DEFAULT, positions)
        if limit <= prompt:
            what = "positions" if self.max_length is None else "max_length"
            raise ValueError(
                f"max_length counts the prompt and must be above it, got {what}={limit} and {prompt} tokens of prompt; "
                "max_new_tokens does not count it"
            )
        return limit - prompt

    def config(self, count: int) -> Greedy | Sampling | Beam:
        """Make the config of the decoding loop, for that many new tokens, which are not compiled in."""
        shared = {
            "max_length": room(count), "limit": count, "eos": self.ends, "pad": self.filler, "stop": self.stop_sequences
        }  # fmt: skip
        if self.do_sample:
            # 0 keeps all as None does, and shares the program of other numbers.
            filters = {"top_p": self.top_p, "min_p": self.min_p or 0.0, "typical_p": self.typical_p}
            if self.epsilon_cutoff or self.eta_cutoff or self.top_h:
                filters["cutoff"] = Cutoff(self.epsilon_cutoff, self.eta_cutoff, self.top_h or None)
            return Sampling(**shared, temperature=self.temperature, top_k=self.top_k or None, **filters)
        if self.num_beams == 1:
            return (
                Contrastive(**shared, alpha=self.penalty_alpha, top_k=self.top_k) if self.searches else Greedy(**shared)
            )
        return Beam(
            **shared, beams=self.num_beams, length_penalty=PowerPenalty(alpha=self.length_penalty),
            early_stopping=self.early_stopping, n_best=self.num_return_sequences,
        )  # fmt: skip

    def constraints(self, prompt: int) -> Constraints:
        """Make the constraints on what is generated after a prompt of that many tokens."""
        return Constraints(
            bias=self.sequence_bias,
            source=SourceRules(
                repetition_penalty=self.encoder_repetition_penalty, no_repeat_ngram=self.encoder_no_repeat_ngram_size
            ),
            decay=self.exponential_decay_length_penalty if self.ends else None,
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram=self.no_repeat_ngram_size,
            bad_words=self.bad_words_ids,
            min_length=max(self.min_new_tokens, self.min_length - prompt, 0) if self.ends else 0,
            eos=self.ends,
            first=self.forced_bos_token_id if prompt == 1 else None,
            last=self.forced_eos_token_id,
            suppress=self.suppress_tokens,
            suppress_first=self.begin_suppress_tokens,
            renormalize=self.renormalize_logits and self.num_beams > 1,
        )


NAMES = tuple(each.name for each in dataclasses.fields(Settings))
NULLABLE = tuple(each.name for each in dataclasses.fields(Settings) if each.default is None or each.name == "top_k")
"""Settings of which None says something: that there is none. Of others it asks for what the checkpoint says."""


HINTS = {
    "logits_processor": "process=… takes a function of logits, tokens and their number; decode.compose joins several",
    "stopping_criteria": "stop_strings and stop_sequences end a row",
    "output_scores": "return_dict_in_generate=True gives the transition_scores of the tokens",
    "past_key_values": "past=hub.read_prompt(pretrained, ids) is of a prompt that is read once",
    "inputs": "the name is input_ids",
    "max_time": "max_new_tokens ends it",
    "seed": "key=jax.random.key(0) is what sampling draws from",
}
"""What to do instead, of words that `transformers` has."""
KEPT = (
    "use_cache", "synced_gpus", "cache_implementation", "return_legacy_cache", "transformers_version",
    "interpolate_pos_encoding",
)  # fmt: skip
"""Words about how, and not what, is generated: nothing here depends on them."""


def read_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Understand the settings that somebody gives; of those in a `generation_config`, what is not given otherwise.

    Raises:
      ValueError: a word that is not understood, or another generation_config than an object, a mapping, or a file.
    """
    config = changes.get("generation_config")
    found = {**_stored(config), **{name: value for name, value in changes.items() if name != "generation_config"}}
    unknown = [name for name in found if name not in NAMES and not _says_nothing(name, found[name])]
    if unknown:
        hint = next((f"; {HINTS[name]}" for name in unknown if name in HINTS), "")
        raise ValueError(f"there is no setting {listed(unknown)}{hint}; there are {', '.join(NAMES)}")
    return {name: value for name, value in found.items() if name in NAMES}


def _says_nothing(name: str, value: Any) -> bool:
    """Return whether a word that is no setting asks for what is done anyway."""
    return value is None or value is False or value == UNSUPPORTED.get(name, ()) or name in KEPT


def _stored(config: Any) -> dict[str, Any]:
    """Read a generation_config: what it says, without what it leaves open."""
    if config is None:
        return {}
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        config = read_json(path / "generation_config.json" if path.is_dir() else path)
    elif hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise ValueError(
            f"generation_config must be an object of transformers, a mapping or a file, got {config!r:.60}"
        )
    return {name: value for name, value in config.items() if value is not None and not name.startswith("_")}


def make_settings(config: Fields, generation: Fields, changes: Mapping[str, Any]) -> Settings:
    """Combine what config.json and generation_config.json say, the latter if there is one, with changes to it.

    Raises:
      ValueError: an unknown setting, or one in generation_config.json that is not supported.
    """
    changes = read_changes(changes)
    tokens = {name: config[name] for name in NAMES if name.endswith("token_id") and config.get(name) is not None}
    stored = generation or config
    found = {name: stored[name] for name in NAMES if stored.get(name) is not None}
    if "max_new_tokens" in changes or "max_length" in changes:
        found = {name: value for name, value in found.items() if name not in ("max_new_tokens", "max_length")}
    files = (("config.json", tokens), ("generation_config.json" if generation else "config.json", found))
    read = {name: _setting(file, name, value) for file, values in files for name, value in values.items()}
    given = {name: value for name, value in changes.items() if value is not None or name in NULLABLE}
    settings = Settings(**read | {name: _setting("", name, value) for name, value in given.items()})
    for name, harmless in UNSUPPORTED.items():
        if stored.get(name, harmless) not in (harmless, None):
            raise ValueError(f"generation_config.json has {name}={stored[name]!r}, which is not supported")
    return settings


def _setting(file: str, name: str, value: Any) -> Any:
    """Check a value that a file gives, or the caller."""
    value, hint = _frozen(value), Settings.__annotations__[name]
    numbers = [number for number in jax.tree.leaves(value) if not isinstance(number, str)]
    if not fits(value, hint) or not all(abs(number) < 2**31 for number in numbers):
        kind = f"{name} as {getattr(hint, '__name__', hint)}" if file else f"{getattr(hint, '__name__', hint)}"
        rule = f"{file} must give {kind}" if file else f"{name} must be {kind}"
        raise ValueError(f"{rule}, below 2**31, got {value!r:.99}")
    return value


def _several(tokens: Tokens) -> tuple[int, ...]:
    return () if tokens is None else tokens if isinstance(tokens, tuple) else (tokens,)


def _frozen(value: Any) -> Any:
    """Turn lists and arrays into tuples, and numbers of NumPy and JAX into Python's."""
    if isinstance(value, np.generic | np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        value = value.tolist()
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
