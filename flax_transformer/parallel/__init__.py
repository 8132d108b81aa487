"""Mesh, sharding table and activation constraints."""

from flax_transformer.parallel.axis import AXIS_TO_MESH as AXIS_TO_MESH
from flax_transformer.parallel.axis import axis_rules as axis_rules
from flax_transformer.parallel.axis import row_parts as row_parts
from flax_transformer.parallel.mesh import AXES as AXES
from flax_transformer.parallel.mesh import MeshConfig as MeshConfig
from flax_transformer.parallel.mesh import abstract_mesh as abstract_mesh
from flax_transformer.parallel.mesh import make_mesh as make_mesh
from flax_transformer.parallel.sharding import RULES as RULES
from flax_transformer.parallel.sharding import batch_sharding as batch_sharding
from flax_transformer.parallel.sharding import constrain as constrain
from flax_transformer.parallel.sharding import logical_axes as logical_axes
from flax_transformer.parallel.sharding import path_name as path_name
from flax_transformer.parallel.sharding import sharding_rules as sharding_rules
from flax_transformer.parallel.sharding import tree_axes as tree_axes
from flax_transformer.parallel.sharding import tree_shardings as tree_shardings
from flax_transformer.parallel.sharding import with_axes as with_axes
