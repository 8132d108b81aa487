"""Architectures that are an encoder and something on top: classifiers, masked language models, and decoders."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import ModelOutput, causal_lm, encoder_lm
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Architecture
from flax_transformer.hub.table import Table
from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.text.causal_bert import CausalBertConfig, as_decoder

Reader = Callable[[Fields], EncoderConfig]
Call = Callable[..., ModelOutput]
POOLER = re.compile(r"(^|\.)pooler\.")


def settle_pooler(base: str, fields: Fields, names: Collection[str]) -> Fields:
    """Return whether a model alone has a pooler, which only the names of the tensors tell, as a `Family` is `settled`.

    With `add_pooling_layer=False` transformers makes one without, of which config.json says nothing. `has_pooler` is a
    field of ours: one called as that option is would keep transformers from taking it.

    Args:
      base: the family's class of models alone; others are what they are called.
    """
    has = fields["architectures"][0] != base or any(POOLER.search(name) for name in names)
    return fields if fields.flag("has_pooler", True) == has else fields.updated({"has_pooler": has})


def classifier(
    read: Reader,
    call: Call,
    rows: Table,
    outputs: int | None = None,
    dropout: Mapping[str, float | None] | None = None,
    *,
    uses: tuple[str, ...],
    base: bool = False,
    ignored: tuple[str, ...] = (),
    **head: Any,
) -> Architecture:
    """Make the architecture of an encoder with a head.

    Args:
      read: makes the encoder's config of config.json.
      rows: of the head.
      outputs: of the head; None: as many as there are labels.
      dropout: fields that give the rate before the output layer, the first that is there, and their defaults.
      uses: what it can do.
      base: whether it is the base class, whose tensors have no prefix.
      ignored: patterns of tensors that a larger class has besides.
      head: what else a `HeadConfig` has.
    """

    def config(fields: Fields) -> ClassifierConfig:
        rates = (fields.number(name, default) for name, default in (dropout or {}).items())
        rate = next((rate for rate in rates if rate is not None), 0.0)
        return with_head(read(fields), outputs=fields.labels if outputs is None else outputs, dropout=rate, **head)

    return Architecture(config, call, rows, at="backbone.", uses=uses, base=base, ignored=ignored)


def masked_lm(
    read: Reader,
    rows: Table,
    call: Call = encoder_lm,
    *,
    uses: tuple[str, ...] = ("fill-mask",),
    ignored: tuple[str, ...] = (),
    **options: Any,
) -> Architecture:
    """Make the architecture of a masked language model.

    Args:
      read: makes the encoder's config of config.json.
      rows: of what is on top.
      uses: what it can do.
      ignored: patterns of tensors that a larger class has besides.
      options: what else a `MaskedLMConfig` has.
    """

    def config(fields: Fields) -> MaskedLMConfig:
        tied = fields.flag("tie_word_embeddings", True)
        return MaskedLMConfig(encoder=read(fields), tied_output=tied, **options)

    return Architecture(config, call, rows, at="encoder.", uses=uses, ignored=ignored)


def decoder_lm(
    table: ConfigTable,
    rows: Table,
    call: Call = causal_lm,
    *,
    dense: str | None = None,
    ignored: tuple[str, ...] = (),
    said: Mapping[str, Any] | None = None,
) -> Architecture:
    """Make the architecture of an encoder that is a decoder: `is_decoder`, without cross-attention.

    Args:
      table: of the encoder's config.
      rows: of what is on top.
      dense: activation of the dense layer before the output layer; the blocks' own by default.
      ignored: patterns of tensors that a larger class has besides.
      said: fields of config.json that are written besides.
    """
    table = replace(table, only={**table.only, "is_decoder": True, "tie_word_embeddings": True})

    def config(fields: Fields) -> CausalBertConfig:
        if not fields.flag("is_decoder", False):
            raise ValueError(
                f"config.json has is_decoder=false, with which a {fields.get('architectures', ['decoder'])[0]} sees "
                "what comes after a token too; only true is supported"
            )
        return as_decoder(table.read(fields), dense)

    def writes(config: CausalBertConfig) -> dict[str, Any]:
        return {"is_decoder": True, **(said or {})}

    return Architecture(config, call, rows, writes, uses=("text-generation",), ignored=ignored)
