"""A new model that begins with another run's parameters, as a model that writes all tokens at once does with those of
its teacher (Guo et al. 2020, https://arxiv.org/abs/1911.08717, begin with an autoregressive translator).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from flax_transformer.atomic import write_file
from flax_transformer.parallel import path_name
from flax_transformer.task.run import open_run
from flax_transformer.train.folder import RunFolder


def take_tokenizer(workdir: str, folder: RunFolder) -> None:
    """Copy the tokenizer of a run, if it has one, into the folder of a new run.

    Every process does, so that none looks before it is there.

    Raises:
      FolderError: no run there.
      ValueError: the new run has another tokenizer already.
    """
    theirs = RunFolder(Path(workdir)).tokenizer
    if not theirs.is_file():
        return
    if not folder.tokenizer.exists():
        write_file(folder.tokenizer, theirs.read_bytes())
    elif folder.tokenizer.read_bytes() != theirs.read_bytes():
        raise ValueError(f"a warm start has the tokenizer of {workdir}, {folder.root} has another")


def warm_start(model: Any, workdir: str, whole: Sequence[str] = ()) -> Any:
    """Return a model with a run's parameters wherever path and shape are equal, and say how many these are.

    Args:
      workdir: of the run, whose newest checkpoints are averaged as its recipe says.
      whole: parts of the model of which every parameter must be the run's.

    Raises:
      FolderError, CheckpointError: no run, or no checkpoint that can be read.
      ValueError: no parameter is the same, or one of `whole` is not.
    """
    theirs = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(open_run(workdir).model)}
    taken: dict[str, int] = {}

    def take(path: tuple, leaf: jax.Array) -> jax.Array:
        name = path_name(path)
        found = theirs.get(name)
        if found is None or found.shape != leaf.shape:
            return leaf
        taken[name] = leaf.size
        return found.astype(leaf.dtype)

    model = jax.tree_util.tree_map_with_path(take, model)
    if not taken:
        raise ValueError(f"a warm start wants parameters of the same path and shape, {workdir} has none of this model")
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        name = path_name(path)
        if name.split(".")[0] in whole and name not in taken:
            found = f"one of {theirs[name].shape}" if name in theirs else "none of this name"
            raise ValueError(
                f"{' and '.join(whole)} of this model must be the run's, all of it, for it is not trained: {name} has "
                f"the shape {leaf.shape}, {workdir} has {found}"
            )
    every = sum(leaf.size for leaf in jax.tree.leaves(model))
    parts = ", ".join(dict.fromkeys(name.split(".")[0] for name in taken))
    print(f"warm start: {sum(taken.values()):,} of {every:,} parameters are those of {workdir}: {parts}", flush=True)
    return model
