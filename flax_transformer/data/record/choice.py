"""Choosing the columns that a task reads, by names that are usual or by those given."""

from collections.abc import Sequence

from flax_transformer.data.record.record import Records
from flax_transformer.listing import listed


def choose_columns(
    records: Records, usual: Sequence[Sequence[str]], given: Sequence[str] = (), what: str = "columns"
) -> tuple[str, ...]:
    """Choose columns: those given, or the first of some usual ones that are all there.

    Args:
      usual: sequences of names.
      given: names, as many as one of the usual sequences.
      what: what messages call the field that gives names.

    Raises:
      ValueError: columns that are not there; says which there are.
    """
    counts = sorted({len(names) for names in usual})
    if given:
        if len(given) not in counts:
            raise ValueError(f"{what} must be {' or '.join(map(str, counts))} names, got {listed(given)}")
        missing = next((name for name in given if not records.has(name)), None)
        if missing is not None:
            raise ValueError(f"{records.path} must have a column {missing!r}, it has {listed(records.names)}")
        return tuple(given)
    found = next((tuple(names) for names in usual if all(map(records.has, names))), None)
    if found is None:
        known = "; ".join(", ".join(names) for names in usual)
        raise ValueError(
            f"{records.path} must have the columns of one of: {known}; it has {listed(records.names)}, and {what} "
            "names others"
        )
    return found
