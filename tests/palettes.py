"""Pictures with a palette: a screenshot takes a third of the room when each pixel names one of 256 colours.

The browser counts the colours and names each pixel's; a colour that is rare gets the nearest of the common ones.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Final

from .browser import Browser

#: Returns width, height, the colours and the pixels' places among them, the last two in base64.
_COUNT: Final = """
const done = arguments[1];
const text = bytes => {
    let found = '';
    for (let i = 0; i < bytes.length; i += 32768) found += String.fromCharCode(...bytes.subarray(i, i + 32768));
    return btoa(found);
};
const image = new Image();
image.onerror = () => done(null);
image.onload = () => {
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
    const counts = new Map();
    for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    const common = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a - b).slice(0, 256);
    const parts = pixel => [pixel & 255, pixel >> 8 & 255, pixel >> 16 & 255];
    const colours = common.map(parts), places = new Map(common.map((pixel, place) => [pixel, place]));
    for (const pixel of counts.keys()) {
        if (places.has(pixel)) continue;
        const own = parts(pixel), far = each => each.reduce((sum, part, i) => sum + (part - own[i]) ** 2, 0);
        const distances = colours.map(far);
        places.set(pixel, distances.indexOf(Math.min(...distances)));
    }
    done([image.width, image.height, text(new Uint8Array(colours.flat())),
        text(Uint8Array.from(pixels, pixel => places.get(pixel)))]);
};
image.src = `data:image/png;base64,${arguments[0]}`;
"""


def with_palette(window: Browser, picture: bytes) -> bytes:
    """Return a PNG as one of 256 colours at most. The window leaves its page."""
    window.open("about:blank")  # which has no policy on images
    found = window.script_async(_COUNT, base64.b64encode(picture).decode())
    assert found is not None, "This is no picture."
    width, height, colours, pixels = found[0], found[1], base64.b64decode(found[2]), base64.b64decode(found[3])
    rows = b"".join(b"\0" + pixels[place : place + width] for place in range(0, len(pixels), width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (b"IHDR", header), (b"PLTE", colours), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
