"""Checkpoints of an encoder and a decoder, each of a family of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from flax_transformer.hub.config_diff import config_diff
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.side_call import both_layers
from flax_transformer.hub.table import Table, TensorRow, linear, under
from flax_transformer.hub.text_decoder import WORDS, kind_of
from flax_transformer.models.head import ClassifierConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig

Encoders = Mapping[str, tuple[Family, Architecture]]


@dataclass(frozen=True)
class Sides:
    """What may be the encoder in such checkpoints; decoders are `WORDS`."""

    encoders: Callable[[], Encoders]
    """By `model_type`: the family, and its class that is nearest to hidden states alone."""

    def inside(self, fields: Fields, side: str) -> Fields:
        """Return the config.json of the encoder or the decoder.

        Raises:
          ValueError: what is no object, or of a family that cannot stand there.
        """
        found = fields.get(side)
        if not isinstance(found, dict):
            raise ValueError(f"config.json must give {side} as an object, it is {found!r:.40}")
        kind = found.get("model_type")
        known = list(WORDS) if side == "decoder" else list(self.encoders())
        if kind not in known:
            raise ValueError(f"config.json has {side}.model_type={kind!r}; supported there are {', '.join(known)}")
        return Fields.of(found)

    def read(self, fields: Fields) -> Seq2SeqConfig:
        """Make the config of both sides of config.json's fields."""
        fields.only(tie_word_embeddings=False)
        inside = self.inside(fields, "encoder")
        encoder, words = _alone(self.encoders()[inside["model_type"]][1], inside), self.inside(fields, "decoder")
        return WORDS[words["model_type"]].read(encoder, words)

    def write(self, config: Seq2SeqConfig) -> dict[str, Any]:
        """Write config.json's fields of both sides.

        Raises:
          ValueError: an encoder or a decoder that is of no family.
        """
        encoder = config.encoder.backbone if isinstance(config.encoder, ClassifierConfig) else config.encoder
        kind = kind_of(config)
        words = {"model_type": kind, **WORDS[kind].write(config)}
        if config_diff(config, WORDS[kind].read(encoder, Fields.of(words))):
            raise ValueError(f"the decoder must be one that a family of checkpoints has: {', '.join(WORDS)}")
        return {
            "encoder": self._written(encoder), "decoder": words, "is_encoder_decoder": True,
            "tie_word_embeddings": False,
        }  # fmt: skip

    def _written(self, encoder: Any) -> dict[str, Any]:
        for kind, (family, architecture) in self.encoders().items():
            try:
                said = {"model_type": kind, **family.write(encoder)}
                if not config_diff(encoder, _alone(architecture, Fields.of(said))):
                    return said
            except (AttributeError, TypeError, ValueError):
                continue  # of another family
        raise ValueError(f"the encoder must be one that a family of checkpoints has, got {type(encoder).__name__}")

    def _rows(self, table: Table, ours: str, theirs: str, side: str) -> Iterator[TensorRow]:
        """Put a side's rows where they are, and let them be fitted to that side's fields."""
        for row in under(table, ours, theirs):
            yield row if row.fit is None else replace(row, fit=partial(self._fitted, row.fit, side))

    def _fitted(self, fit: Any, side: str, tensor: np.ndarray, before: Fields, after: Fields) -> np.ndarray:
        return fit(tensor, self.inside(before, side), self.inside(after, side))

    def composed(self, general: Family, fields: Fields) -> Family:
        """Return the family of checkpoints with the two sides that config.json names."""
        family, architecture = self.encoders()[self.inside(fields, "encoder")["model_type"]]
        at = "encoder.backbone." if isinstance(self.read(fields).encoder, ClassifierConfig) else "encoder."
        words = WORDS[self.inside(fields, "decoder")["model_type"]]
        own = {
            name: replace(
                each, marks=tuple(dict.fromkeys((*architecture.marks, "hidden_states"))),
                layers=partial(both_layers, architecture),
            )
            for name, each in general.architectures.items()
        }  # fmt: skip
        source = {"input_ids": f"{at}embedding.token"} if "input_ids" in general.looked_up else {}
        return replace(
            general,
            architectures=own,
            table=(
                *self._rows(family.table, at, "encoder.", "encoder"),
                *linear("encoder.head.output", "enc_to_dec_proj"),
                *under(words.table, "", "decoder."),
            ),
            ignored=(*family.ignored, *words.ignored),
            renamed={**family.renamed, **words.renamed},
            modules=family.modules,
            copies={f"decoder.{name}": f"decoder.{other}" for name, other in words.copies.items()},
            looked_up={**general.looked_up, **source},
        )


def _alone(architecture: Architecture, fields: Fields) -> Any:
    """Read the config of an encoder without what stands on it."""
    return architecture.backbone_of(architecture.config(fields))
