"""Byte-level BPE: the bytes of each token, as tables over token ids."""

from collections.abc import Mapping, Sequence

from vllmfront.text._json import json_escape

REPLACEMENT = "\ufffd"


def _printable_stand_ins() -> dict[str, int]:
    """Map the characters that byte-level vocabularies are written in to the bytes they mean.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the
    characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    table.update((chr(0x100 + n), byte) for n, byte in enumerate(others))
    return table


_BYTE_OF = _printable_stand_ins()


def token_bytes(token: str) -> bytes:
    """Return what a byte-level decoder makes of one vocabulary string.

    A string with any character outside the alphabet (an added token with a space, say) stands
    for its own UTF-8 bytes.
    """
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


def byte_table(vocabulary: Mapping[str, int], size: int) -> list[bytes]:
    """Return the bytes of every token id below *size*; unknown ids have none."""
    table = [b""] * max(size, 1 + max(vocabulary.values(), default=-1))
    for token, token_id in vocabulary.items():
        table[token_id] = token_bytes(token)
    return table


def escaped_table(table: Sequence[bytes]) -> list[bytes | None]:
    """Return each token's text as the inside of a JSON string.

    None stands for tokens that are not text by themselves: part of a character, or ending in a
    replacement character, which may turn out to be one. Entries that need no escaping are the
    objects of *table*.
    """
    return [_escaped(raw) for raw in table]


def _escaped(raw: bytes) -> bytes | None:
    if raw.isascii() and raw.isalnum():
        return raw
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if text.endswith(REPLACEMENT):
        return None
    fragment = json_escape(text)
    return raw if fragment == raw else fragment
