"""Attention weights of any model that reads a text, and of its decoder if it has one.

Axes: L layers, N heads, S source tokens, T target tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_transformer.hub import ModelOutput, Pretrained
from flax_transformer.report import AttentionMaps, TextAttention
from flax_transformer.task.attention import KINDS, LONGEST, draw_sentence, spell, where_weights_are
from flax_transformer.task.checkpoint import open_checkpoint, positions_of, tokenizer_of
from flax_transformer.task.run import open_translator
from flax_transformer.task.translation import translates

SELF = "Rows: tokens; columns: the tokens that they attend to."


def draw_text(name: str | Path, text: str) -> tuple[TextAttention, dict[str, Any]]:
    """Return the attention of any checkpoint or run on a text; a run that translates searches as its recipe says.

    Returns:
      The image, and the text as a sample with what was written.

    Raises:
      FileNotFoundError, FolderError, CheckpointError: what cannot be opened.
      ValueError: as `draw`, or what cannot be opened.
    """
    if translates(Path(name)):
        translator, search = open_translator(name)
        return draw_sentence(translator, text, search)
    pretrained = open_checkpoint(str(name))
    drawing = draw(pretrained, text)
    return drawing, {"source": text, **({"hypothesis": drawing.output} if _answers(pretrained) else {})}


def draw(pretrained: Pretrained, text: str, written: Sequence[int] | None = None) -> TextAttention:
    """Make the image of a text that a checkpoint reads, with the special tokens it adds.

    It runs on the CPU by the `xla` backend, as only that one has the weights.

    Args:
      written: tokens that the decoder of an encoder-decoder is fed, the end token included; by default what it writes
        in answer, or the text itself where it writes nothing.

    Raises:
      ValueError: a text that is empty or too long to draw, a checkpoint that reads no text, or one that attends by a
        function that does not show its weights.
    """
    tokenizer = tokenizer_of(pretrained, text)
    if not text.strip():
        raise ValueError(f"the sentence must not be empty, got {text!r}")
    inputs = tokenizer([text])
    source = inputs["input_ids"][0].tolist()
    if not 0 < len(source) <= LONGEST:
        raise ValueError(f"a text must have 1 to {LONGEST} tokens to be drawn, got {len(source)}")
    if "decoder_input_ids" not in pretrained.architecture.inputs.takes:
        choices = "multiple-choice" in pretrained.architecture.uses
        given = {name: np.asarray(each)[None] if choices else each for name, each in inputs.items()}
        tokens = spell(tokenizer, source)
        weights = _stacked(_looked(pretrained, given), "attentions")
        return TextAttention(text, "", (AttentionMaps("self", weights, tokens, tokens, caption=SELF),))
    return _both_sides(pretrained, text, inputs, written)


def draw_texts(pretrained: Pretrained, texts: Sequence[str]) -> list[TextAttention]:
    """Make the images of some texts that a model with one side reads; of the first alone where none can be padded.

    Raises:
      ValueError: as `draw`.
    """
    tokenizer = tokenizer_of(pretrained)
    inputs = tokenizer(texts if tokenizer.pad is not None else texts[:1])
    weights = np.stack(_looked(pretrained, inputs)["attentions"], axis=1).astype(np.float32)
    text_attention = []
    for text, ids, seen, own in zip(texts, inputs["input_ids"], inputs["attention_mask"], weights, strict=False):
        places = np.flatnonzero(seen)
        tokens = spell(tokenizer, np.asarray(ids)[places].tolist())
        maps = AttentionMaps("self", own[:, :, places][..., places], tokens, tokens, caption=SELF)
        text_attention.append(TextAttention(text, "", (maps,)))
    return text_attention


def _both_sides(
    pretrained: Pretrained, text: str, inputs: Mapping[str, Any], written: Sequence[int] | None
) -> TextAttention:
    source = inputs["input_ids"][0].tolist()
    tokenizer = tokenizer_of(pretrained)
    target = tokenizer.target or tokenizer
    answers = _answers(pretrained)
    start = pretrained.config.integer("decoder_start_token_id")
    if written is None:
        written = _answer(pretrained, inputs) if answers else source
    written = list(written)[:LONGEST]
    read = [start, *written[:-1]]
    output = _looked(pretrained, {**inputs, "decoder_input_ids": np.array([read])})
    sides = {"source": spell(tokenizer, source), "read": spell(target, read), "written": spell(target, written)}
    kinds = zip(
        KINDS.items(),
        ("encoder_attentions", "decoder_attentions", "cross_attentions"),
        (("source", "source"), ("written", "read"), ("written", "source")),
        strict=True,
    )
    maps = tuple(
        AttentionMaps(name, _stacked(output, field), sides[rows], sides[columns], caption=caption)
        for (name, caption), field, (rows, columns) in kinds
    )
    return TextAttention(text, target.decode(written) if answers else "", maps)


def _answers(pretrained: Pretrained) -> bool:
    """Return whether a model has a decoder that generates an answer."""
    known = pretrained.architecture
    return "text2text-generation" in known.uses and "decoder_input_ids" in known.inputs.takes


def _answer(pretrained: Pretrained, inputs: Mapping[str, Any]) -> list[int]:
    """Write in answer to a source, by the checkpoint's own settings."""
    count = min(LONGEST, positions_of(pretrained.model.cfg) or LONGEST)
    rows = pretrained.generate(inputs["input_ids"], inputs.get("attention_mask"), max_new_tokens=count)
    return np.asarray(rows)[0, 1:].tolist()


def _looked(pretrained: Pretrained, inputs: Mapping[str, Any]) -> ModelOutput:
    """Run the model where attention has its weights; give them, on the host."""
    with where_weights_are():
        here = jax.tree.map(np.asarray, pretrained)
        output = jax.device_get(here(**inputs, output_attentions=True))
    return output.text_model_output or output  # of two towers that of texts


def _stacked(output: ModelOutput, field: str) -> np.ndarray:
    return np.stack([weights[0] for weights in output[field]]).astype(np.float32)
