"""Thrift's compact protocol, the part that parquet's footers use: bytes to structs and back.

A struct is a dict from field numbers to (kind, value). Values are ints, bytes, dicts, and for a list (kind
of its elements, values). Nothing is interpreted, so a footer of any version survives decode and encode.
Source: thrift's doc/specs/thrift-compact-protocol.md.
"""

from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """Types on the wire."""

    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    STRUCT = 12


Struct = dict[int, tuple[Kind, Any]]

_LONG = 15  # a list's length, or the step to a field's number, has its own bytes from 15 on


def encode(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out, last = bytearray(), 0
    for number, (kind, value) in sorted(struct.items()):
        step = number - last
        out += bytes([step << 4 | kind]) if step <= _LONG else bytes([kind]) + _zigzag(number)
        out += b"" if kind in (Kind.TRUE, Kind.FALSE) else _encoded(kind, value)  # the kind is the value
        last = number
    return bytes(out) + b"\0"


def _encoded(kind: Kind, value: Any) -> bytes:
    match kind:
        case Kind.TRUE | Kind.FALSE | Kind.BYTE:
            return bytes([value])
        case Kind.I16 | Kind.I32 | Kind.I64:
            return _zigzag(value)
        case Kind.DOUBLE:
            return bytes(value)
        case Kind.BINARY:
            return varint(len(value)) + bytes(value)
        case Kind.LIST:
            element, values = value
            short = min(len(values), _LONG)
            size = varint(len(values)) if short == _LONG else b""
            return bytes([short << 4 | element]) + size + b"".join(_encoded(element, each) for each in values)
        case Kind.STRUCT:
            return encode(value)


def varint(number: int) -> bytes:
    """A number from 0 on, seven bits per byte, the lowest bits first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _zigzag(number: int) -> bytes:
    return varint(number * 2 if number >= 0 else -number * 2 - 1)


def decode(content: bytes) -> Struct:
    """The struct that begins with the first byte."""
    return _Reader(content).struct()


def decode_at(content: bytes, start: int) -> tuple[Struct, int]:
    """The struct that begins at byte `start`, and where it ends."""
    reader = _Reader(content, start)
    return reader.struct(), reader.position


class _Reader:
    def __init__(self, content: bytes, start: int = 0) -> None:
        self._content, self._at = content, start

    @property
    def position(self) -> int:
        return self._at

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while head := self._take(1)[0]:
            step, kind = head >> 4, Kind(head & 0xF)
            number = number + step if step else self._zigzag()
            found[number] = kind, (kind if kind in (Kind.TRUE, Kind.FALSE) else self._value(kind))
        return found

    def _value(self, kind: Kind) -> Any:
        match kind:
            case Kind.TRUE | Kind.FALSE | Kind.BYTE:
                return self._take(1)[0]
            case Kind.I16 | Kind.I32 | Kind.I64:
                return self._zigzag()
            case Kind.DOUBLE:
                return self._take(8)
            case Kind.BINARY:
                return self._take(self._varint())
            case Kind.LIST:
                head = self._take(1)[0]
                size, element = head >> 4, Kind(head & 0xF)
                size = self._varint() if size == _LONG else size
                return element, [self._value(element) for _ in range(size)]
            case Kind.STRUCT:
                return self.struct()

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._content[self._at - size : self._at]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._take(1)[0]) > 0x7F:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def _zigzag(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
