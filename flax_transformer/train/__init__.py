"""Training any function of a model and a batch: states, steps, optimizers, checkpoints and the loop.

>>> from flax_transformer import train
>>> optimizer = train.make_optimizer(train.OptimizerConfig(name="adamw", weight_decay=0.01), steps=1_000)
"""

from flax_transformer.train.carry import batch_statistics
from flax_transformer.train.checkpoint import CheckpointError, Checkpoints, average_models
from flax_transformer.train.finetune import freeze, path_mask
from flax_transformer.train.folder import FolderError, RunFolder, open_folder
from flax_transformer.train.loop import TrainConfig, fit
from flax_transformer.train.lora import LoraConfig, adapt, init_lora, merge_lora
from flax_transformer.train.mean import Mean
from flax_transformer.train.optimizer import OptimizerConfig, adamw_linear, make_optimizer, muon_cosine
from flax_transformer.train.order import layer_distances
from flax_transformer.train.parameter_axis import parameter_axes, per_layer
from flax_transformer.train.schedule import ScheduleConfig, make_schedule
from flax_transformer.train.state import TrainState, abstract_state, evaluated_model, init_state, parameter_count
from flax_transformer.train.step import jit_train_step, make_train_step

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "FolderError",
    "LoraConfig",
    "Mean",
    "OptimizerConfig",
    "RunFolder",
    "ScheduleConfig",
    "TrainConfig",
    "TrainState",
    "abstract_state",
    "adamw_linear",
    "adapt",
    "average_models",
    "batch_statistics",
    "evaluated_model",
    "fit",
    "freeze",
    "init_lora",
    "init_state",
    "jit_train_step",
    "layer_distances",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "merge_lora",
    "muon_cosine",
    "open_folder",
    "parameter_axes",
    "parameter_count",
    "path_mask",
    "per_layer",
]
