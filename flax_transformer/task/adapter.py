"""The low-rank factors that a run has trained, as a folder of PEFT beside its export."""

from pathlib import Path
from typing import Any

from flax_transformer import hub
from flax_transformer.hub.load import new_tensors
from flax_transformer.task.start import StartConfig
from flax_transformer.train.lora import Lora


def write_adapter(lora: Lora, known: hub.Pretrained, init: str, model: Any, folder: Path) -> None:
    """Write trained factors, and a head that the checkpoint has not, or print why PEFT cannot have them.

    Args:
      known: what training began with.
      init: the checkpoint that it was loaded of, a folder or hub id.
      model: the recipe's: where it leaves layers out, the factors are of no checkpoint that has a name.
    """
    cut = isinstance(model, StartConfig) and model.layers
    own = bool(cut or known.architecture.sides)
    base = str(Path(init).resolve()) if Path(init).is_dir() else init
    try:
        whole = () if own else new_tensors(init, known)
        hub.save_adapter(lora, known, folder, base="" if own else base, whole=whole)
    except ValueError as error:
        print(f"the factors are in the export alone, no folder of PEFT has them: {error}", flush=True)
