"""Training batches of sentence pairs, by a plan."""

from typing import Any

from flax_transformer.data.examples import Arrays
from flax_transformer.data.stream import Stream
from flax_transformer.data.text.batch import BucketPlan, Tokenized, collate


class BucketStream(Stream):
    """Batches of token pairs by a bucket plan, which every process makes alike."""

    def __init__(
        self,
        plan: BucketPlan,
        examples: Tokenized,
        **options: int,
    ) -> None:
        """Return what the batches are made of; `options` are those of `Stream`."""
        super().__init__(**options)
        if plan.examples != len(examples):
            raise ValueError(f"plan and examples must be of one size, got {plan.examples} and {len(examples)} pairs")
        self._plan, self._examples = plan, examples
        self.check_rows(self._count)

    def check_rows(self, count: int) -> None:
        """Check that the rows of every batch are a multiple of ``count``; raise ValueError if not."""
        uneven = {boundary: rows for boundary, rows in self._plan.batch_sizes.items() if rows % count}
        if uneven:
            raise ValueError(
                f"rows of every batch must be a multiple of the processes, got {count} processes and rows by "
                f"boundary {uneven}; make the plan with multiple={count}"
            )

    def identity(self) -> dict[str, Any]:
        """Name the plan, the pairs and the tokenizer."""
        plan = self._plan
        return {
            "seed": plan.seed,
            "tokens": plan.tokens,
            "boundaries": list(plan.boundaries),
            "multiple": plan.multiple,
            "data": self._examples.fingerprint,
            "tokenizer": self._examples.tokenizer,
        }

    def make(self, step: int) -> Arrays:
        """Lay out this process's rows of the batch the plan has for a step."""
        boundary, indices = self._plan[step]
        return collate(self._examples, self.own(indices), boundary)


def pipeline(
    plan: BucketPlan, examples: Tokenized, *, process_index: int = 0, process_count: int = 1, start: int = 0
) -> BucketStream:
    """Stream this process's rows of the batches of ``plan`` from global step ``start`` on, over all epochs."""
    return BucketStream(plan, examples, process_index=process_index, process_count=process_count, start=start)
