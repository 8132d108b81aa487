"""Data as endless examples with random access, streamed as batches; a folder for each kind of data.

The splits of a `DataSet` are `Table`s. Example number i is a pure function of a table's rows, the transforms, a seed
and i: `shuffled` makes examples of rows and transforms, `mixture` of several kinds, ``ExampleStream`` streams them for
training and `each_once` for evaluation.
"""

from flax_transformer.data.examples import Collate, Example, Examples, each_once, mixture, proportional, shuffled
from flax_transformer.data.stream import ExampleStream, Stream
from flax_transformer.data.table import DataSet, Table

__all__ = [
    "Collate",
    "DataSet",
    "Example",
    "ExampleStream",
    "Examples",
    "Stream",
    "Table",
    "each_once",
    "mixture",
    "proportional",
    "shuffled",
]
