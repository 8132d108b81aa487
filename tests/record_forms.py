"""The same records in every form that they are read in, written by the standard library and by pyarrow."""

import csv
import gzip
import io
import json
import lzma

FORMS = ("csv", "jsonl", "csv.gz", "jsonl.xz", "saved", "hub", "arrow", "parquet")
"""Files, folders as `save_to_disk` of `datasets` leaves them, and repositories of Parquet as on the hub."""
SPLITS = ("train", "dev", "test")


def schema_of(table, classes=None):
    """Return the schema of a table with the features that `datasets` writes into it."""
    features = {
        name: {"names": list(classes[name]), "_type": "ClassLabel"}
        if name in (classes or {})
        else {"dtype": "string", "_type": "Value"}
        for name in table.schema.names
    }
    return table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def table_of(rows, classes=None):
    """Make a table of Arrow of records."""
    import pyarrow

    table = pyarrow.Table.from_pylist(rows)
    return table.cast(schema_of(table, classes))


def write_arrow(path, table, batch=3):
    """Write a stream of Arrow, as files of `datasets` are."""
    import pyarrow

    with pyarrow.ipc.new_stream(path, table.schema) as file:
        file.write_table(table, max_chunksize=batch)


def write_saved(folder, table, shards=2):
    """Write a folder as `Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    size = -(-len(table) // shards)
    names = [f"data-{number:05}-of-{shards:05}.arrow" for number in range(shards)]
    for number, name in enumerate(names):
        write_arrow(folder / name, table.slice(number * size, size))
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "x", "_split": None}
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    (folder / "dataset_info.json").write_text('{"features": {}}')


def write_hub(folder, name, table, shards=2):
    """Write Parquet files as a repository of the hub has them."""
    import pyarrow.parquet

    (folder / "data").mkdir(parents=True, exist_ok=True)
    size = -(-len(table) // shards)
    for number in range(shards):
        path = folder / "data" / f"{name}-{number:05}-of-{shards:05}.parquet"
        pyarrow.parquet.write_table(table.slice(number * size, size), path, row_group_size=3)


def csv_text(rows):
    """Write CSV with a row of names."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, [*rows[0]])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_form(folder, form, name, rows, classes=None):
    """Write records as a split of a folder, numbers of `classes` by number where the form has a schema.

    Args:
      classes: what the numbers of columns stand for; forms without a schema have the names.
    """
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    called = classes or {}
    named = [{key: called[key][value] if key in called else value for key, value in row.items()} for row in rows]
    if form.startswith(("csv", "jsonl")):
        text = csv_text(named) if form.startswith("csv") else "".join(json.dumps(row) + "\n" for row in named)
        pack = {"gz": gzip.compress, "xz": lzma.compress}.get(form.rpartition(".")[2], lambda data: data)
        (folder / f"{name}.{form}").write_bytes(pack(text.encode()))
        return
    table, split = table_of(rows, classes), {"dev": "validation"}.get(name, name)
    if form == "saved":
        write_saved(folder / split, table)
        (folder / "dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    elif form == "hub":
        write_hub(folder, split, table)
    elif form == "arrow":
        write_arrow(folder / f"{name}.arrow", table)
    else:
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=3)
