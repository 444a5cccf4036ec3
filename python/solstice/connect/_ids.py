"""Names that nobody else has."""

import os


def new_id() -> str:
    """A random UUID as text; ``uuid`` would be 2 ms of every program's start."""
    digits = bytearray(os.urandom(16))
    digits[6] = digits[6] & 0x0F | 0x40  # version 4
    digits[8] = digits[8] & 0x3F | 0x80  # the variant of RFC 4122
    text = digits.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
