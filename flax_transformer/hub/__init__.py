"""Hugging Face checkpoints in and out."""

from flax_transformer.hub.call import ModelOutput as ModelOutput
from flax_transformer.hub.load import Lenient as Lenient
from flax_transformer.hub.load import load as load
from flax_transformer.hub.load import save as save
from flax_transformer.hub.load import wrap as wrap
from flax_transformer.hub.pretrained import Pretrained as Pretrained
from flax_transformer.hub.registry import register as register
