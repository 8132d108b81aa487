"""Every family of checkpoints there is, as its golden checkpoint: a model, inputs for it, and how to call it."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from flax_transformer import hub
from tests.shares import only

GOLDEN = sorted((Path(__file__).parent.parent / "hub/golden").iterdir())
FEW = only(GOLDEN, *(folder for folder in GOLDEN if folder.name in ("llama", "swin")))
"""Of which `make test` tries what costs most: their parts are those of most others; `make slow` tries all."""
OUTPUTS = (
    "logits", "auxiliary_logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits",
    "relevance_logits", "sentence_embedding", "reconstruction", "pred_boxes", "pred_masks", "class_queries_logits",
    "masks_queries_logits", "text_embeds",
    "image_embeds", "logits_per_text",
    "itm_score", "action_preds", "state_preds", "return_preds", "question_answering_score", "sample",
    "pooler_output",
)  # fmt: skip

DECODERS = (
    "BertLMHeadModel",
    "RobertaForCausalLM",
    "XLMRobertaForCausalLM",
    "CamembertForCausalLM",
    "BigBirdForCausalLM",
)
"""Classes of encoders that are decoders, which config.json must say."""


class Golden(NamedTuple):
    """A checkpoint and inputs for it; of texts the second row is padded on the left."""

    pretrained: hub.Pretrained
    inputs: dict[str, np.ndarray]
    generates: bool
    """Whether transformers generates with it, so that no position sees a later one."""

    @property
    def reads(self) -> str:
        """Which input the positions of the outputs are of."""
        return "decoder_input_ids" if "decoder_input_ids" in self.inputs else "input_ids"


def load(folder: Path) -> Golden:
    """Read a golden checkpoint."""
    with np.load(folder / "expected.npz") as arrays:
        inputs = {name.removeprefix("in_"): arrays[name] for name in arrays if name.startswith("in_")}
        generates = "greedy" in arrays
    return Golden(hub.load(folder), inputs, generates)


@jax.jit
def scores(pretrained: hub.Pretrained, inputs: dict) -> dict[str, jax.Array]:
    """Call a checkpoint by its own names and give all of its scores."""
    output = pretrained(**inputs)
    return {name: output[name] for name in OUTPUTS if name in output.keys()}  # noqa: SIM118


def error(ours: object, theirs: object) -> float:
    """Return the largest difference, relative to the largest value, over all arrays."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max()) for a, b in pairs)
