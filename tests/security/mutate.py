"""Damage to small valid files, the same in every run: to bytes, to JSON, to the header of safetensors."""

import json
import random
from collections.abc import Iterator
from typing import Any

WRONG = (None, True, -1, 10**12, 10**30, 1.5, 1e308, "x", "", [], ["x"], {}, {"x": 1}, [[[]]], "\ud800", "../x")
"""Values of every JSON type, few of which are right anywhere."""

Damaged = Iterator[tuple[str, bytes, bool]]
"""What was done, what the file holds then, and whether that may be a valid other file."""


def damaged_bytes(content: bytes, seed: int, flips: int, legal: range = range(0)) -> Damaged:
    """Cut, lengthen and empty a file, and flip single bits of it.

    Args:
        legal: places where any byte is as good as another.
    """
    draw = random.Random(seed)
    for share in (0, 0.3, 0.9):
        yield f"cut to {share:.0%}", content[: int(len(content) * share)], False
    yield "last byte cut off", content[:-1], False
    yield "zeros", bytes(len(content)), False
    yield "zeros behind", content + bytes(64), False
    yield "twice", content * 2, False
    telling = [place for place, byte in enumerate(content) if byte] or range(len(content))
    for place in sorted(draw.sample(telling, min(flips, len(telling)))):
        flipped = bytes([content[place] ^ 1 << draw.randrange(8)])
        yield f"byte {place} flipped", content[:place] + flipped + content[place + 1 :], place in legal


def damaged_text(content: bytes) -> Damaged:
    """Break a JSON object as text."""
    text = content.strip()
    yield "a byte order mark", b"\xef\xbb\xbf" + text, False
    yield "UTF-16", text.decode().encode("utf-16"), False
    yield "bytes that are not UTF-8", text.replace(b'"', b'"\xff\xfe', 1), False
    yield "a NUL", text.replace(b":", b":\0", 1), False
    yield "a comma at the end", text[:-1] + b",}", False
    yield "something behind", text + b"x", False
    yield "null", b"null", False
    yield "a list", b"[" + text + b"]", False
    for value in ("NaN", "-Infinity", "1" * 5000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000):
        yield f"a key of {value[:12]}", b'{"extra": ' + value.encode() + b"," + text[1:], False
    for key in json.loads(text):
        yield f"{key} twice", text[:-1] + f", {json.dumps(key)}: 3}}".encode(), False


def damaged_json(content: bytes, seed: int, amount: int) -> Damaged:
    """Remove, replace and turn round values of a JSON document, at most so many, drawn from all there are."""
    every = list(_changes(json.loads(content)))
    for path, change in random.Random(seed).sample(every, min(amount, len(every))):
        document = json.loads(content)
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        old, where = parent[path[-1]], ".".join(map(str, path))
        if change == "removed":
            del parent[path[-1]]
        else:
            parent[path[-1]] = dict(reversed(old.items())) if change == "reversed" else change[0]
        legal = isinstance(change, str) or None in (old, change[0]) or _kind(change[0]) is _kind(old)
        yield f"{where} {change!r:.24}", json.dumps(document).encode(), legal


def enormous(content: bytes) -> Damaged:
    """Make each whole number of a JSON object the largest that may pass: ids may, sizes are none of any file."""
    fields = json.loads(content)
    for key in (key for key, value in fields.items() if type(value) is int):
        for value in (10**9, 2**31 - 1, 10**12):
            yield f"{key} {value}", json.dumps(fields | {key: value}).encode(), True


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def _changes(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    if path:
        yield path, "removed"
        yield from ((path, [wrong]) for wrong in WRONG)
    if isinstance(value, dict | list):
        if isinstance(value, dict) and path:
            yield path, "reversed"
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _changes(item, (*path, key))


def damaged_header(content: bytes, seed: int, amount: int) -> Damaged:
    """Break the JSON header of a safetensors file, its length put right, and then the length itself."""
    size = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + size], content[8 + size :]
    for length in (0, 1, size - 1, size + 1, 10**8 + 1, 2**63, 2**64 - 1):
        yield f"header length {length}", length.to_bytes(8, "little") + content[8:], False
    whole = lambda text: len(text).to_bytes(8, "little") + text + data  # noqa: E731
    for label, text, legal in (*damaged_text(header), *damaged_json(header, seed, amount), *_lies(header, len(data))):
        yield f"header: {label}", whole(text), legal and "__metadata__" in label


def _lies(header: bytes, size: int) -> Damaged:
    """Say of one tensor what is not so."""
    tensors = json.loads(header)
    name = next(name for name in tensors if name != "__metadata__")
    begin, end = tensors[name]["data_offsets"]
    offsets = (
        [-4, end],
        [begin, -1],
        [end, begin],
        [begin, size + 4],
        [begin + 4, end + 4],
        [0, 2**64],
        [0],
        [0, 1, 2],
    )
    shapes = ([-1], [2**32, 2**32], [2**63, 2], [10**30], [0], [1.0], "4", [[4]], [1] * 100_000)
    for field, lies in {"data_offsets": offsets, "shape": shapes, "dtype": ("F64", "I64", "F4", "float32", "")}.items():
        for lie in lies:
            changed = tensors | {name: tensors[name] | {field: lie}}
            yield f"{field} {lie!r:.24}", json.dumps(changed).encode(), False
    yield "a tensor over another", json.dumps(tensors | {"more": tensors[name]}).encode(), False
    yield (
        "a tensor of no bytes",
        json.dumps(tensors | {"more": {"dtype": "F32", "shape": [0, 10**12], "data_offsets": [0, 0]}}).encode(),
        False,
    )
