"""Read protocol buffers without their schema: profiles and the compiler's plans of memory come in them.

The encoding: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from typing import Any

Message = dict[int, list[Any]]
"""Values by the number of their field, in order: whole numbers, or bytes, which may be a message themselves."""


def message(data: bytes) -> Message:
    """Take a message apart.

    >>> message(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69]))
    {1: [150], 2: [b'hi']}

    Raises:
      ValueError: bytes that are no message.
    """
    found: Message = {}
    try:
        for number, value in _fields(data):
            found.setdefault(number, []).append(value)
    except IndexError:
        raise ValueError(f"a message must be whole, got {len(data)} bytes that end within a field") from None
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(data):
        key, place = _number(data, place)
        if key & 7 == 0:
            value, place = _number(data, place)
        else:
            size, place = _number(data, place) if key & 7 == 2 else ({1: 8, 5: 4}.get(key & 7, -1), place)
            if size < 0:
                raise ValueError(f"a field has wire type 0, 1, 2 or 5, got {key & 7}")
            value, place = data[place : place + size], place + size
        yield key >> 3, value


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Read a whole number, seven bits a byte; give also where it ends."""
    value = shift = 0
    while True:
        byte = data[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place


def numbers(values: list[Any]) -> list[int]:
    """Return the whole numbers of a repeated field, be they packed or not."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        place = 0
        while place < len(value):
            one, place = _number(value, place)
            found.append(one)
    return found


def text(values: list[Any] | None) -> str:
    """Return the last of a field's strings; "" where there is none."""
    return values[-1].decode(errors="replace") if values else ""
