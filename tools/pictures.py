"""`make pictures`: the pictures of the console in the docs, from the screenshots that the browser tests have kept.

A test's screenshot is 60 to 200 KB and has thousands of colours, nearly all of them edges of letters. Here each gets
the 256 that cover most of it, and every other point the nearest of them: a third of the size, without a visible
difference.

PNG, as it is written: the signature, then chunks of length, kind, bytes and CRC-32. IHDR has the width, the height, 8
bits a point and 3 for a palette; PLTE the palette, three bytes a colour; IDAT the deflated rows, each behind a 0 for
"not filtered"; IEND nothing.
"""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".screenshots"
IMAGES = ROOT / "docs" / "images"
PICTURES = {
    "console": ("picture-gap-light",),
    "overview": ("picture-overview-light",),
    "queue": ("picture-queue-light",),
    "schedules": ("picture-schedules-light",),
    "consumer": ("picture-consumer-light",),
    "routers": ("picture-routers-light",),
    "schema": ("picture-schema-light",),
    "search": ("picture-search-light",),
    "dark": ("picture-search-dark",),
    "phone": ("pocket-overview-light", "pocket-gap-light", "pocket-search-light"),
}
"""The name in docs/images, and the screenshots of the tests that stand in it side by side."""

Pixels = npt.NDArray[np.uint8]
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS = 256
_GAP = 24
"""Points between the screenshots of one picture."""


def main() -> None:
    missing = [name for names in PICTURES.values() for name in names if not (KEPT / f"{name}.png").exists()]
    if missing:
        sys.exit(f"the browser tests have kept no {', '.join(missing)}; `make pictures` runs them first")
    IMAGES.mkdir(exist_ok=True)
    for name, sources in PICTURES.items():
        before = [(KEPT / f"{source}.png").read_bytes() for source in sources]
        after = written(*palette_of(side_by_side([pixels_of(png) for png in before])))
        (IMAGES / f"{name}.png").write_bytes(after)
        print(f"docs/images/{name}.png: {sum(map(len, before)) / 1024:.0f} KB, now {len(after) / 1024:.0f} KB")


def side_by_side(pictures: list[Pixels]) -> Pixels:
    """Pictures of one height in a row, with white between them."""
    gap = np.full((len(pictures[0]), _GAP, 3), 255, np.uint8)
    return np.hstack([part for picture in pictures for part in (gap, picture)][1:])


def pixels_of(png: bytes) -> Pixels:
    """Height by width by three, of an 8-bit RGB or RGBA picture, as browsers make them."""
    assert png.startswith(_SIGNATURE)
    at, data, width, height, kind = len(_SIGNATURE), b"", 0, 0, 2
    while at < len(png):
        length, name = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + length]
        if name == b"IHDR":
            width, height, bits, kind, *_ = struct.unpack(">IIBBBBB", body)
            assert bits == 8 and kind in (2, 6)
        elif name == b"IDAT":
            data += body
        at += 12 + length
    each = 3 if kind == 2 else 4
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * each)
    return _unfiltered(rows, each).reshape(height, width, each)[:, :, :3]


def _unfiltered(rows: Pixels, each: int) -> Pixels:
    """The first byte of each row is the filter type: it names the neighbours that predict each pixel."""
    found = np.zeros((len(rows), rows.shape[1] - 1), np.uint8)
    above = np.zeros(rows.shape[1] - 1, np.uint8)
    for number, row in enumerate(rows):
        how, line = int(row[0]), row[1:]
        if how == 0:
            above = line.copy()
        elif how == 2:
            above = line + above
        else:
            above = _guessed(how, line, above, each)
        found[number] = above
    return found


def _guessed(how: int, line: Pixels, above: Pixels, each: int) -> Pixels:
    """The filters that depend on the pixel to the left, so pixels are computed one by one."""
    now, up = bytearray(line.tobytes()), above.tobytes()
    for place in range(len(now)):
        left = now[place - each] if place >= each else 0
        corner = up[place - each] if place >= each else 0
        if how == 1:
            guess = left
        elif how == 3:
            guess = (left + up[place]) // 2
        else:
            far = [abs(up[place] - corner), abs(left - corner), abs(left + up[place] - 2 * corner)]
            guess = (left, up[place], corner)[far.index(min(far))]
        now[place] = (now[place] + guess) & 255
    return np.frombuffer(bytes(now), np.uint8)


def palette_of(pixels: Pixels) -> tuple[Pixels, Pixels]:
    """The colours that cover most of a picture, and for each point the number of the nearest of them."""
    colours, which, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    chosen = colours[np.argsort(-counts, kind="stable")[:_COLOURS]]
    nearest = np.empty(len(colours), np.uint8)
    for start in range(0, len(colours), 1024):
        part = colours[start : start + 1024, None].astype(np.int32) - chosen[None].astype(np.int32)
        nearest[start : start + 1024] = (part**2).sum(axis=2).argmin(axis=1)
    return chosen, nearest[which.reshape(-1)].reshape(pixels.shape[:2])


def written(palette: Pixels, numbers: Pixels) -> bytes:
    height, width = numbers.shape
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = numbers
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": palette.tobytes(),
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks.items()
    )


if __name__ == "__main__":
    main()
