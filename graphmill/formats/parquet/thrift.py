"""Thrift's compact protocol, the part that parquet uses: bytes to structs and back.

A struct is a dict from field numbers to (kind, value). Values are ints, bytes, dicts, and for a list (kind
of its elements, values). Nothing is interpreted, so a footer of any version survives reading and encoding.
Source: thrift's doc/specs/thrift-compact-protocol.md.
"""

from typing import Any, BinaryIO


class ThriftKind:
    """Types in the encoded bytes: numbers, since an enum takes as long as all else for each field read."""

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


Struct = dict[int, tuple[int, Any]]

_LONG = 15  # a list's length, or the step to a field's number, has its own bytes from 15 on


def encode(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out, last = bytearray(), 0
    for number, (kind, value) in sorted(struct.items()):
        step = number - last
        out += bytes([step << 4 | kind]) if step <= _LONG else bytes([kind]) + _zigzag(number)
        if kind not in (ThriftKind.TRUE, ThriftKind.FALSE):  # whose kind is the value
            out += _encoded(kind, value)
        last = number
    return bytes(out) + b"\0"


def _encoded(kind: int, value: Any) -> bytes:
    match kind:
        case ThriftKind.TRUE | ThriftKind.FALSE | ThriftKind.BYTE:
            return bytes([value])
        case ThriftKind.I16 | ThriftKind.I32 | ThriftKind.I64:
            return _zigzag(value)
        case ThriftKind.DOUBLE:
            return bytes(value)
        case ThriftKind.BINARY:
            return varint(len(value)) + bytes(value)
        case ThriftKind.LIST:
            element, values = value
            short = min(len(values), _LONG)
            size = varint(len(values)) if short == _LONG else b""
            return bytes([short << 4 | element]) + size + b"".join(_encoded(element, part) for part in values)
        case _:
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


def read(stream: BinaryIO) -> Struct:
    """Read the struct at the stream's position."""
    struct: Struct = {}
    number = 0
    while head := stream.read(1)[0]:
        step, kind = head >> 4, head & 0xF
        number = number + step if step else _read_zigzag(stream)
        is_value = kind in (ThriftKind.TRUE, ThriftKind.FALSE)
        struct[number] = kind, kind if is_value else _read_value(stream, kind)
    return struct


def _read_value(stream: BinaryIO, kind: int) -> Any:
    match kind:
        case ThriftKind.TRUE | ThriftKind.FALSE | ThriftKind.BYTE:
            return stream.read(1)[0]
        case ThriftKind.I16 | ThriftKind.I32 | ThriftKind.I64:
            return _read_zigzag(stream)
        case ThriftKind.DOUBLE:
            return stream.read(8)
        case ThriftKind.BINARY:
            return stream.read(read_varint(stream))
        case ThriftKind.LIST:
            head = stream.read(1)[0]
            size, element = head >> 4, head & 0xF
            size = read_varint(stream) if size == _LONG else size
            return element, [_read_value(stream, element) for _ in range(size)]
        case ThriftKind.STRUCT:
            return read(stream)
    raise ValueError(f"expected one of thrift's kinds, found {kind}")


def read_varint(stream: BinaryIO) -> int:
    """Read a number that `varint` wrote."""
    number = shift = 0
    while (byte := stream.read(1)[0]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
    return number | byte << shift


def _read_zigzag(stream: BinaryIO) -> int:
    number = read_varint(stream)
    return number >> 1 ^ -(number & 1)
