"""Low-rank adaptation of a language model: a checkpoint and new text in, a checkpoint of the same kind out."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from flax_transformer import hub
from flax_transformer.data import each_once, shuffled
from flax_transformer.data.text import Rows, Windows
from flax_transformer.data.text.plain import PlainText, encode_documents
from flax_transformer.models.causal import Causal
from flax_transformer.objective import TokenLoss
from flax_transformer.task.experiment import Experiment, Task
from flax_transformer.task.language import continuations
from flax_transformer.task.text import Shown, TextRun, evaluate, stream
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.lora import Adapted, LoraConfig, adapt, init_lora, merge_lora, save_lora
from flax_transformer.train.state import parameter_count

FACTORS = "lora.safetensors"
"""File of a run's folder that holds the factors alone."""

adapted_loss = adapt(TokenLoss())


@dataclass(frozen=True, kw_only=True)
class LoraLanguageModel(Experiment):
    """Adapt a decoder-only checkpoint to other text, training low-rank factors alone."""

    init: str = ""
    """The checkpoint to begin from: a Hugging Face folder or hub id, or the `export` of a run."""
    data: PlainText = PlainText()
    lora: LoraConfig = LoraConfig()
    rows: int = 12
    length: int = 64
    samples: int = 3

    def task(self, folder: RunFolder) -> Task:
        """Load the checkpoint, put factors beside its kernels, cut windows of the text."""
        if not self.init:
            raise ValueError("nothing to adapt: give --init FOLDER, a checkpoint such as a run's export")
        base = hub.load(self.init)
        if not isinstance(base.model, Causal) or base.tokenizer is None:
            kind = base.config["architectures"][0]
            raise ValueError(f"init must be a language model with a tokenizer, {self.init} is a {kind}")
        adapted = Adapted(base.model, init_lora(base.model, self.lora, jax.random.key(self.train.seed)))
        trained, whole = parameter_count(adapted.lora), parameter_count(adapted.base)
        print(f"{trained:,} parameters are trained, {100 * trained / whole:.1f} % of the model's", flush=True)
        tokens = {
            split: encode_documents(self.data.read(split), base.tokenizer).flat for split in ("train", "validation")
        }
        collate = Rows(length=self.length, pad=base.tokenizer.pad or 0)
        held = Windows(tokens=tokens["validation"], length=self.length, stride=self.length)
        validation = partial(each_once, held, rows=max(self.rows, 32), collate=collate)
        before = evaluate(TokenLoss(), base.model, validation())["loss"]
        print(f"validation loss before: {before:.4f}", flush=True)
        return TextRun(
            config=base.model.cfg,
            architecture=base.config["architectures"][0],
            tokenizer=base.tokenizer,
            objective=adapted_loss,
            batches=stream(
                shuffled(Windows(tokens=tokens["train"], length=self.length), seed=self.train.seed), collate, self.rows
            ),
            validation=validation,
            show=partial(self._show, validation, held, before),
            model=adapted,
            merge=partial(self._merge, folder),
            fields={k: v for k, v in base.config.items() if k != "architectures"},
        ).task(folder)

    def _merge(self, folder: RunFolder, adapted: Adapted) -> Any:
        save_lora(adapted.lora, folder.root / FACTORS)
        return merge_lora(adapted.base, adapted.lora)

    def _show(self, validation: Any, held: Windows, before: float, pretrained: hub.Pretrained) -> Shown:
        loss = evaluate(TokenLoss(), pretrained.model, validation())["loss"]
        samples, lines = continuations(pretrained, held, self.samples, self.train.seed)
        return Shown(
            metrics={"loss": loss, "perplexity": math.exp(min(loss, 100)), "loss_before": before},
            samples=samples,
            lines=(*lines, "", f"validation loss {before:.4f} before, {loss:.4f} after"),
        )
