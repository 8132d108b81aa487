"""Two encoders trained to find passages of questions: examples, the checkpoint that both begin with, recall.

Axes: F S texts, E width of vectors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_transformer import hub
from flax_transformer.data.examples import Arrays
from flax_transformer.frozen import frozen
from flax_transformer.hub.registry import find_uses
from flax_transformer.hub.sentence import PLAIN
from flax_transformer.models.preset import abstract
from flax_transformer.models.text.sentence import sentence_encoder
from flax_transformer.models.text.two_encoders import two_encoders
from flax_transformer.task.evaluator import Finished, Shown
from flax_transformer.task.retrieval import RetrievalEvaluator
from flax_transformer.task.run import EXPORT
from flax_transformer.task.sentence_similarity import TextRows
from flax_transformer.task.spec import Spec
from flax_transformer.task.start import load_start, stated_fields

USE = "passage-retrieval"
FOLDERS = {"question": "question_encoder", "passage": "ctx_encoder"}
"""Folder of each encoder in an export."""


def encoder_side(pretrained: hub.Pretrained, side: str) -> hub.Pretrained:
    """Return the encoder of the `question` or of the `passage` as a checkpoint; one without sides is both."""
    sides: Mapping[str, str] = pretrained.architecture.sides
    if not sides:
        return pretrained
    config = pretrained.config.updated({"architectures": [sides[side]]})
    return replace(pretrained, model=getattr(pretrained.model, side), config=config)


def load_pair(name: str, spec: Spec, like: Any, *, seed: int, keep: bool = False) -> hub.Pretrained:
    """Load a checkpoint that two encoders begin with: both of it, or one that either begins with.

    Args:
      name: folder or hub id: a BERT, an encoder of DPR, or the export of a run that has both.
      spec, like, seed, keep: as `load_start`.

    Raises:
      ValueError: a checkpoint that is none of these.
    """
    stated = stated_fields(name)
    kind, own = stated.get("model_type"), (stated.get("architectures") or [""])[0]
    if own in find_uses("dpr", USE):
        return load_start(name, spec, like, seed=seed, keep=keep)
    if kind == "bert":
        single = replace(spec, uses=("feature-extraction",), fields=PLAIN)
    elif own in find_uses("dpr", "sentence-similarity"):
        single = replace(spec, uses=("sentence-similarity",))
    else:
        raise ValueError(f"two encoders begin with a BERT or with encoders of DPR, {name} is a {own or kind}")
    return pair_of(load_start(name, single, like, seed=seed, keep=keep))


def pair_of(found: hub.Pretrained) -> hub.Pretrained:
    """Return two encoders that both begin with what a checkpoint computes of the first token."""
    own = found.architecture.dot
    backbone, dense = found.model.backbone, found.model.cfg.head.dense if own else ()
    backbone = getattr(backbone, "backbone", backbone)  # without a pooler
    model = abstract(two_encoders(sentence_encoder(backbone.cfg, pools=("first",), dense=dense)))
    for side in (model.question, model.passage):
        side.backbone = jax.tree.map(jnp.copy, backbone)  # no buffer is in both, as a step donates them
        for i in range(len(dense)):
            setattr(side.head, f"dense_{i}", jax.tree.map(jnp.copy, getattr(found.model.head, f"dense_{i}")))
    (name,) = find_uses("dpr", USE)
    tokens = {key: value for key, value in found.config.items() if key.endswith("_token_id")}
    return hub.wrap(model, name, tokenizer=found.tokenizer, **tokens)


@frozen
class QuestionRows(TextRows):
    """Lay out a question and passages a row, for two encoders."""

    uses: ClassVar[tuple[str, ...]] = (USE,)
    fields: ClassVar[Mapping[str, Any]] = {}

    def start(self, name: str, spec: Spec, like: Any, **options: Any) -> hub.Pretrained:
        """Load what both encoders begin with; arguments as `load_pair`'s."""
        return load_pair(name, spec, like, **options)


@frozen
class PassageRetrieval(RetrievalEvaluator):
    """Rank all test passages by their inner products with each question, and all questions with each passage; the
    export gets a folder of either encoder, which `transformers` opens."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        if finished.pretrained is not None:
            for side, folder in FOLDERS.items():
                hub.save(encoder_side(finished.pretrained, side), finished.folder.root / EXPORT / folder)
        return super().__call__(finished)

    def scores(self, finished: Finished) -> Float[np.ndarray, "F S"]:
        """Compute the inner products of all questions and passages."""
        held, model = finished.opened.held, finished.model
        return _embedded(model.question, held.first()) @ _embedded(model.passage, held.second()).T


def _embedded(encoder: Any, batches: Iterable[Arrays]) -> Float[np.ndarray, "N E"]:
    found = [np.asarray(_vectors(encoder, each["inputs"]))[each["weights"] > 0] for each in batches]
    return np.concatenate(found)


@jax.jit
def _vectors(encoder: Any, inputs: Mapping[str, Array]) -> Float[Array, "B E"]:
    return encoder.output(encoder.hidden_states(**inputs))
