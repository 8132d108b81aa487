"""Modules that bind weights to ops; each is a pytree, calling it a pure function."""

from flax_transformer.nn.attention import Attention as Attention
from flax_transformer.nn.block import Block as Block
from flax_transformer.nn.cache import Caches as Caches
from flax_transformer.nn.cache import KVCache as KVCache
from flax_transformer.nn.cache import Memory as Memory
from flax_transformer.nn.cache import cache_length as cache_length
from flax_transformer.nn.cache import each_cache as each_cache
from flax_transformer.nn.config import BlockConfig as BlockConfig
from flax_transformer.nn.config import Precision as Precision
from flax_transformer.nn.config import Rotary as Rotary
from flax_transformer.nn.config import with_precision as with_precision
from flax_transformer.nn.embedding import Embedding as Embedding
from flax_transformer.nn.embedding import EmbeddingConfig as EmbeddingConfig
from flax_transformer.nn.feedforward import FeedForward as FeedForward
from flax_transformer.nn.norm import make_norm as make_norm
from flax_transformer.nn.relative import RelativeBias as RelativeBias
from flax_transformer.nn.relative import RelativeConfig as RelativeConfig
from flax_transformer.nn.stack import REMAT as REMAT
from flax_transformer.nn.stack import PerLayer as PerLayer
from flax_transformer.nn.stack import apply_stack as apply_stack
from flax_transformer.nn.stack import init_stack as init_stack
from flax_transformer.nn.stack import layer as layer
from flax_transformer.nn.stack import map_stack as map_stack
from flax_transformer.nn.stack import stack_depth as stack_depth
from flax_transformer.nn.stack import unstack as unstack
from flax_transformer.nn.summary import summary as summary
