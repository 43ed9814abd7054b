"""JSON text where a line is a record."""

_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def in_one_line(text: bytes) -> bytes:
    """JSON text without line breaks. They only ever stand between its values, where a space means the same: within a
    string they are written as escapes."""
    return text.translate(_BREAKS) if b"\n" in text or b"\r" in text else text
