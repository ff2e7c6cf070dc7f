"""Any text as the name of one file or folder: percent-encoding, as in URLs."""

import hashlib

_ENCODED = frozenset("/\\:%")  # folders; folders elsewhere; refused by HDFS; the escape itself
MAX_BYTES = 100


def file_name(text: str) -> str:
    """Return `text` as the name of a file: the same, unless it has characters that such names cannot have.

    Slashes, backslashes, colons, `%`, control characters and a first dot become `%XX`, the bytes of their
    UTF-8; `urllib.parse.unquote` gives the text back. Of a name of more than `MAX_BYTES` bytes the beginning
    remains, before `%~` and a hash of the text. Different texts have different names.
    """
    encoded = "".join(map(_encoded, text))
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded.encode()) <= MAX_BYTES:
        return encoded
    end = "%~" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return encoded.encode()[: MAX_BYTES - len(end)].decode(errors="ignore") + end


def _encoded(character: str) -> str:
    if character in _ENCODED or ord(character) < 0x20 or character == "\x7f":
        return f"%{ord(character):02X}"
    return character
