"""What a model is trained on: frozen values that are called with a model and a batch.

A batch is `{"inputs": {name: array}, "labels": …, "weights": …}` and whatever an objective needs besides. The model
takes its inputs by name, so that an objective knows no family: `model.hidden_states(**batch["inputs"], key=key)` are
hidden states, and `model.output(hidden)` is what logits are made of.
"""

from flax_transformer.objective.action import ActionLoss, SquaredActionLoss
from flax_transformer.objective.contrast import ContrastiveLoss, SigmoidLoss
from flax_transformer.objective.ctc import CTCLoss
from flax_transformer.objective.detection import DetectionLoss
from flax_transformer.objective.diffusion import DenoisingLoss, DiffusionLoss, FlowMatchingLoss
from flax_transformer.objective.distil import DistilLoss, MaskedDistilLoss
from flax_transformer.objective.image import CycleLoss, ImageLoss, PairedLoss, SampleLoss
from flax_transformer.objective.label import LabelLoss
from flax_transformer.objective.late_interaction import LateInteractionLoss
from flax_transformer.objective.layer import LayerLoss
from flax_transformer.objective.layer_term import (
    AttentionRelations,
    AttentionScoreError,
    CosineEmbedding,
    HiddenStateError,
    LayerTerm,
)
from flax_transformer.objective.mask_predict import MaskPredictLoss
from flax_transformer.objective.mask_set import MaskSetLoss
from flax_transformer.objective.masked import MaskedLoss
from flax_transformer.objective.match import MatchLoss
from flax_transformer.objective.objective import Batch, Loss, Objective, ObjectiveWrapper, check_parts
from flax_transformer.objective.pixel import MAELoss, SimMIMLoss
from flax_transformer.objective.pixel_label import PixelLabelLoss
from flax_transformer.objective.pointer import PointerLoss
from flax_transformer.objective.ponder import PonderLoss
from flax_transformer.objective.pretext import PatchOrderLoss, RelativePositionLoss, RotationLoss
from flax_transformer.objective.router import RouterLoss
from flax_transformer.objective.self_distil import BYOLLoss, DINOLoss, IBOTLoss
from flax_transformer.objective.sentence import (
    CoSENTLoss,
    CosineSimilarityLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    TripletLoss,
)
from flax_transformer.objective.span import ChoiceLoss, SpanLoss
from flax_transformer.objective.statistics import BatchStatistics
from flax_transformer.objective.teacher import Momentum
from flax_transformer.objective.token import TokenLoss
from flax_transformer.objective.view_contrast import MoCoLoss, MoCoV3Loss, SimCLRLoss
from flax_transformer.objective.views import BYOL_CHANGES, ViewChange, Views
from flax_transformer.objective.visual_token import BEiTLoss

__all__ = [
    "BYOL_CHANGES",
    "OBJECTIVES",
    "ActionLoss",
    "AttentionRelations",
    "AttentionScoreError",
    "BEiTLoss",
    "BYOLLoss",
    "Batch",
    "BatchStatistics",
    "CTCLoss",
    "ChoiceLoss",
    "CoSENTLoss",
    "ContrastiveLoss",
    "CosineEmbedding",
    "CosineSimilarityLoss",
    "CycleLoss",
    "DINOLoss",
    "DenoisingLoss",
    "DetectionLoss",
    "DiffusionLoss",
    "DistilLoss",
    "FlowMatchingLoss",
    "HiddenStateError",
    "IBOTLoss",
    "ImageLoss",
    "LabelLoss",
    "LateInteractionLoss",
    "LayerLoss",
    "LayerTerm",
    "Loss",
    "MAELoss",
    "MaskPredictLoss",
    "MaskSetLoss",
    "MaskedDistilLoss",
    "MaskedLoss",
    "MatchLoss",
    "MatryoshkaLoss",
    "MoCoLoss",
    "MoCoV3Loss",
    "Momentum",
    "MultipleNegativesRankingLoss",
    "Objective",
    "ObjectiveWrapper",
    "PairedLoss",
    "PatchOrderLoss",
    "PixelLabelLoss",
    "PointerLoss",
    "PonderLoss",
    "RelativePositionLoss",
    "RotationLoss",
    "RouterLoss",
    "SampleLoss",
    "SigmoidLoss",
    "SimCLRLoss",
    "SimMIMLoss",
    "SpanLoss",
    "SquaredActionLoss",
    "TokenLoss",
    "TripletLoss",
    "ViewChange",
    "Views",
    "check_parts",
]

OBJECTIVES: dict[str, Objective] = {
    "text-generation": TokenLoss(),
    "text2text-generation": TokenLoss(label_smoothing=0.1, chunk=512),
    "mask-predict": MaskPredictLoss(label_smoothing=0.1, chunk=512),
    "ctc-generation": CTCLoss(),
    "automatic-speech-recognition": CTCLoss(),
    "fill-mask": MaskedLoss(),
    "classification": LabelLoss(),
    "token-classification": LabelLoss(),
    "object-detection": DetectionLoss(),
    "image-to-image": ImageLoss(),
    "retrieval": ContrastiveLoss(),
    "sentence-similarity": MultipleNegativesRankingLoss(),
    "passage-retrieval": MultipleNegativesRankingLoss(similarity="dot", scale=1.0),
    "visual-question-answering": LabelLoss(),
    "visual-reasoning": LabelLoss(),
    "reinforcement-learning": ActionLoss(),
    "image-generation": FlowMatchingLoss(),
}
"""What trains a model, where nothing else is said, by what it can do: a word of `hub.registration.USES`."""
