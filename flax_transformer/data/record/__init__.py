"""Records, as mappings from names to values, of files and folders in the forms that data of texts comes in.

`open_records` opens a file of tab-separated lines, CSV or JSON lines, perhaps compressed, an Arrow or Parquet file, or
a folder that the `datasets` library wrote; `find_split` finds those of a split below a folder.
"""

from flax_transformer.data.record.choice import choose_columns
from flax_transformer.data.record.open import (
    FORMS,
    find_split,
    holds_tables,
    named_records,
    open_records,
    require_split,
)
from flax_transformer.data.record.record import Records, label_of, texts_of

__all__ = [
    "FORMS",
    "Records",
    "choose_columns",
    "find_split",
    "holds_tables",
    "label_of",
    "named_records",
    "open_records",
    "require_split",
    "texts_of",
]
