"""Every objective with a small model and a batch whose parts differ in everything that is counted.

A new objective has a line in `CASES`, or test_objective.py fails. As a script, with eight CPU devices, it prints how
far each loss, metric and gradient on meshes is from one device's.
"""

import importlib
import inspect
import json
import pkgutil
import sys
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np

from flax_transformer import objective as room
from flax_transformer.objective import (
    ActionLoss,
    AttentionRelations,
    AttentionScoreError,
    BatchStatistics,
    BEiTLoss,
    BYOLLoss,
    ChoiceLoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineEmbedding,
    CosineSimilarityLoss,
    CTCLoss,
    CycleLoss,
    DenoisingLoss,
    DetectionLoss,
    DiffusionLoss,
    DINOLoss,
    DistilLoss,
    FlowMatchingLoss,
    HiddenStateError,
    IBOTLoss,
    ImageLoss,
    LabelLoss,
    LateInteractionLoss,
    LayerLoss,
    MAELoss,
    MaskedDistilLoss,
    MaskedLoss,
    MaskPredictLoss,
    MaskSetLoss,
    MatchLoss,
    MatryoshkaLoss,
    MoCoLoss,
    MoCoV3Loss,
    MultipleNegativesRankingLoss,
    Objective,
    ObjectiveWrapper,
    PairedLoss,
    PatchOrderLoss,
    PixelLabelLoss,
    PointerLoss,
    PonderLoss,
    RelativePositionLoss,
    RotationLoss,
    RouterLoss,
    SampleLoss,
    SigmoidLoss,
    SimCLRLoss,
    SimMIMLoss,
    SpanLoss,
    SquaredActionLoss,
    TokenLoss,
    TripletLoss,
    Views,
)
from flax_transformer.objective.image import AdversarialObjective
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh
from flax_transformer.train.carry import NOTHING, carry_of
from flax_transformer.train.finetune import multi_task
from flax_transformer.train.mean import means
from tests.contract.toys import (
    AGAINST,
    ASKED,
    AUDIO,
    AUDIO_FILES,
    AUTOENCODED,
    CHOICES,
    CLASSES,
    CYCLE,
    DENOISES,
    GRID,
    GUESSED,
    IMAGES,
    LABELS,
    LAYERS,
    MAPPED,
    MASKED,
    NAMED,
    NOISE,
    NOISED,
    OBJECTS,
    PAIRS,
    PHOTOS,
    PIXELS,
    PLACES,
    POINTS,
    POSITIONS,
    QUERIES,
    REGRESSED,
    ROUTED,
    ROWS,
    SEEN,
    SEGMENTS,
    SENTENCES,
    SPANS,
    STATES,
    TARGETS,
    TAUGHT,
    TEACHER,
    TEXTS,
    TOKENS,
    VIEWED,
    WORDS,
    E,
    Normalised,
    Scores,
    acted,
    columns,
    found,
    halted,
    layered,
    masked,
    told,
    toy,
)

CASES = {
    "ActionLoss": (ActionLoss(), {"output": acted}, POSITIONS),
    "SquaredActionLoss": (SquaredActionLoss(), {"output": acted}, {**POSITIONS, "labels": SEEN[..., :E] / 2}),
    "BYOLLoss": (BYOLLoss(), VIEWED, IMAGES),
    "BatchStatistics": (BatchStatistics(of=LabelLoss()), None, ROWS),
    "CTCLoss": (CTCLoss(mean_tokens=True), AUDIO_FILES, AUDIO),
    "CTCLoss of recordings without lengths": (CTCLoss(), AUDIO_FILES, {**AUDIO, "inputs": {"x": SEEN}}),
    "ContrastiveLoss": (ContrastiveLoss(), PAIRS, TEXTS),
    "ChoiceLoss": (ChoiceLoss(), CHOICES, ASKED),
    "CoSENTLoss": (CoSENTLoss(), {}, columns(2)),
    "CosineSimilarityLoss": (CosineSimilarityLoss(), {}, columns(2)),
    "DenoisingLoss": (DenoisingLoss(predicts="v_prediction"), DENOISES, NOISED),
    "DINOLoss": (DINOLoss(views=Views(local=2, local_size=4)), VIEWED, IMAGES),
    "DINOLoss by Sinkhorn-Knopp": (DINOLoss(views=Views(), centring="sinkhorn", koleo=0.1), VIEWED, IMAGES),
    "CycleLoss": (CycleLoss(), CYCLE, REGRESSED),
    "DetectionLoss": (DetectionLoss(), {"output": found}, OBJECTS),
    "DetectionLoss of the last layer": (DetectionLoss(auxiliary=False), {"output": found}, OBJECTS),
    "DistilLoss": (DistilLoss(), CLASSES, TEACHER),
    "DistilLoss, soft": (DistilLoss(kind="soft", label_smoothing=0.1), TAUGHT, TEACHER),
    "FlowMatchingLoss": (FlowMatchingLoss(), DENOISES, NOISED),
    "BEiTLoss": (BEiTLoss(codebook=WORDS), NAMED, IMAGES),
    "IBOTLoss": (IBOTLoss(mask_share=0.8), VIEWED, IMAGES),
    "IBOTLoss by Sinkhorn-Knopp": (IBOTLoss(mask_share=0.8, centring="sinkhorn", koleo=0.1), VIEWED, IMAGES),
    "ImageLoss": (ImageLoss(), PIXELS, REGRESSED),
    "LabelLoss": (LabelLoss(), CLASSES, ROWS),
    "LayerLoss": (
        LayerLoss(
            of=DistilLoss(kind="soft"),
            terms=(
                HiddenStateError(layers=((0, 0), (-1, -1)), weight=0.5),
                AttentionScoreError(layers=((0, 1), (1, 1))),
                AttentionRelations(layers=((-1, 1),), relations=("query-key", "value-value"), weight=2.0),
            ),
        ),
        {**CLASSES, "hidden_states": layered},
        LAYERS,
    ),
    "LayerLoss around MaskedDistilLoss": (
        LayerLoss(of=MaskedDistilLoss(), terms=(CosineEmbedding(),)),
        {**SENTENCES, "hidden_states": layered},
        {**MASKED, "teacher": {**MASKED["teacher"], "hidden_states": STATES}},
    ),
    "LabelLoss of positions": (LabelLoss(label_smoothing=0.1), {}, POSITIONS),
    "LateInteractionLoss": (LateInteractionLoss(scale=2.0), {}, QUERIES),
    "MAELoss": (MAELoss(), {**AUTOENCODED, "flat": True}, IMAGES),
    "MaskPredictLoss": (MaskPredictLoss(label_smoothing=0.1), GUESSED, TARGETS),
    "MaskSetLoss": (MaskSetLoss(), {"output": masked}, SEGMENTS),
    "MaskSetLoss of the last layer": (MaskSetLoss(auxiliary=False), {"output": masked}, SEGMENTS),
    "MaskedDistilLoss": (MaskedDistilLoss(weight=0.3), SENTENCES, MASKED),
    "MaskedLoss": (MaskedLoss(), SENTENCES, PLACES),
    "MaskedLoss of tokens alone": (MaskedLoss(), TOKENS, {k: v for k, v in PLACES.items() if k != "next_sentence"}),
    "MatchLoss": (MatchLoss(weight=0.5), PAIRS, TEXTS),
    "MatryoshkaLoss": (
        MatryoshkaLoss(of=CosineSimilarityLoss(), widths=(4, 2), weights=(1.0, 0.5)), {}, columns(2)
    ),
    "MatryoshkaLoss of all pairs": (MatryoshkaLoss(of=MultipleNegativesRankingLoss(), widths=(3,)), {}, columns(3)),
    "MoCoLoss": (MoCoLoss(queue=16), VIEWED, IMAGES),
    "MoCoV3Loss": (MoCoV3Loss(), VIEWED, IMAGES),
    "MultipleNegativesRankingLoss": (MultipleNegativesRankingLoss(both_ways=True), {}, columns(4)),
    "PatchOrderLoss": (PatchOrderLoss(), {**VIEWED, "answers": 24}, IMAGES),
    "PairedLoss": (PairedLoss(), AGAINST, REGRESSED),
    "PixelLabelLoss": (PixelLabelLoss(label_smoothing=0.1), GRID, MAPPED),
    "PointerLoss": (PointerLoss(coverage=0.5), POINTS, TARGETS),
    "PonderLoss": (PonderLoss(of=TokenLoss()), {**TOKENS, "observe": halted}, POSITIONS),
    "RelativePositionLoss": (RelativePositionLoss(gap=0), {**VIEWED, "answers": 8}, PHOTOS),
    "RotationLoss": (RotationLoss(), {**VIEWED, "answers": 4}, IMAGES),
    "RouterLoss": (RouterLoss(of=TokenLoss()), {**TOKENS, **told(*ROUTED)}, POSITIONS),
    "RouterLoss around MaskedLoss": (RouterLoss(of=MaskedLoss()), {**SENTENCES, **told(*ROUTED)}, PLACES),
    "RouterLoss around DetectionLoss": (RouterLoss(of=DetectionLoss()), {"output": found, **told(*ROUTED)}, OBJECTS),
    "SampleLoss": (SampleLoss(), NOISE, {**REGRESSED, "labels": LABELS[:, 0]}),
    "SigmoidLoss": (SigmoidLoss(), PAIRS, TEXTS),
    "SimCLRLoss": (SimCLRLoss(), VIEWED, IMAGES),
    "SimMIMLoss": (SimMIMLoss(), {**AUTOENCODED, "flat": False}, IMAGES),
    "SpanLoss": (SpanLoss(), {"output": lambda self, hidden, key=None: (hidden @ self.w)[..., :2]}, SPANS),
    "TokenLoss": (TokenLoss(label_smoothing=0.1), TOKENS, POSITIONS),
    "TripletLoss": (TripletLoss(margin=1.0), {}, columns(3)),
}  # fmt: skip
"""Objective, methods of its model, and a batch, by a name that begins with the objective's."""


def case(name):
    """Return the objective, the model and the batch of a case."""
    objective, methods, batch = CASES[name]
    return objective, Normalised() if methods is None else toy(**methods), batch


def multi():
    """Return what `multi_task` makes of two objectives, one of which has terms, with a model and a batch."""
    both = multi_task({"words": MaskedLoss(), "objects": DetectionLoss()}, {"objects": 0.5})

    def read(self, hidden, key=None):
        return SimpleNamespace(**vars(found(self, hidden)), scores=Scores((hidden @ self.w)[..., :E]).scores)

    return both, toy(**{**SENTENCES, "output": read}), {"words": PLACES, "objects": OBJECTS}


def objectives():
    """Name every objective of the package, whether it is exported or not."""
    modules = [importlib.import_module(each.name) for each in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")]
    parts = "ViewObjective", "ContrastOfViews", "PredictedViews", "PretextLoss", "MaskedPixels"
    kinds = {kind for module in modules for _, kind in inspect.getmembers(module, inspect.isclass)}
    return sorted(
        kind.__name__
        for kind in kinds
        if issubclass(kind, Objective)
        and kind not in (Objective, ObjectiveWrapper, DiffusionLoss, AdversarialObjective)
        and kind.__name__ not in parts
    )


def learnt(objective, model, batch):
    """Return what a step reports of a batch, without dropout, and the gradient."""
    carry = carry_of(objective)
    given = {} if carry is NOTHING else {"carried": carry.begin(model, jax.random.key(0))}

    def loss(model):
        total, metrics = objective(model, batch, key=None, **given)[:2]
        found = means({"loss": total, **metrics})
        return found["loss"], found

    return jax.value_and_grad(loss, has_aux=True)(carry.trained(model))


MESHES = {"data×fsdp": MeshConfig(data=2, fsdp=4)}


def main():
    apart = {}
    for name in sys.argv[1:]:
        objective, model, batch = case(name)
        learn = jax.jit(partial(learnt, objective))
        ((_, one), slope) = jax.device_get(learn(model, batch))
        for title, sizes in MESHES.items():
            mesh = make_mesh(sizes)
            with jax.set_mesh(mesh):
                whole = jax.device_put(model, jax.NamedSharding(mesh, jax.P()))
                (_, two), other = jax.device_get(learn(whole, jax.device_put(batch, batch_sharding(mesh))))
            far = jax.tree.map(
                lambda a, b: float(np.max(np.abs(a - b)) / (1e-3 + np.abs(a).max())), (one, slope), (two, other)
            )
            apart[f"{name} on {title}"] = max(jax.tree.leaves(far))
    print(json.dumps(apart))


if __name__ == "__main__":
    main()
