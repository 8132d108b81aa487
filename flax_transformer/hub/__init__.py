"""Hugging Face checkpoints in and out."""

from flax_transformer.hub.adapter_choice import hold_adapters as hold_adapters
from flax_transformer.hub.adapter_factor import load_adapter as load_adapter
from flax_transformer.hub.adapter_factor import save_adapter as save_adapter
from flax_transformer.hub.adapter_target import find_targets as find_targets
from flax_transformer.hub.call import ModelOutput as ModelOutput
from flax_transformer.hub.load import Lenient as Lenient
from flax_transformer.hub.load import load as load
from flax_transformer.hub.past import read_prompt as read_prompt
from flax_transformer.hub.pretrained import Pretrained as Pretrained
from flax_transformer.hub.prompt_adapter import prefix_cache as prefix_cache
from flax_transformer.hub.prompt_adapter import prompt_cache as prompt_cache
from flax_transformer.hub.prompt_adapter import read_prompt_adapter as read_prompt_adapter
from flax_transformer.hub.prompt_adapter import save_prompt_adapter as save_prompt_adapter
from flax_transformer.hub.registry import register as register
from flax_transformer.hub.resize import resize_token_embeddings as resize_token_embeddings
from flax_transformer.hub.save import save as save
from flax_transformer.hub.save import wrap as wrap


def __getattr__(name: str) -> object:
    if name in ("from_pretrained", "AutoModel", "AutoTokenizer", "AutoProcessor", "AutoConfig", "pipeline"):
        raise AttributeError(f"hub.load(folder) loads a model with its tokenizer and processor, there is no hub.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
