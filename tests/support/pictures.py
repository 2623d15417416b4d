"""Screenshots as small files: 256 colours are enough for a page of the console.

The browser, which is there anyway, decodes the picture and finds its colours; here it is written with a
palette.
"""

from __future__ import annotations

import base64
import struct
import zlib

from playwright.sync_api import Page

# The most frequent colours, near ones counted as one, and the index of the nearest of them for each point.
_REDUCE = """async picture => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const points = context.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map();
  for (let at = 0; at < points.length; at += 4) {
    const key = (points[at] >> 2 << 12) | (points[at + 1] >> 2 << 6) | (points[at + 2] >> 2);
    const found = counts.get(key);
    if (found) found.count += 1;
    else counts.set(key, { count: 1, rgb: [points[at], points[at + 1], points[at + 2]] });
  }
  const palette = [...counts.values()].sort((a, b) => b.count - a.count).slice(0, 256).map(one => one.rgb);
  const nearest = new Map();
  const indices = new Uint8Array(points.length / 4);
  for (let at = 0; at < points.length; at += 4) {
    const key = (points[at] >> 2 << 12) | (points[at + 1] >> 2 << 6) | (points[at + 2] >> 2);
    let index = nearest.get(key);
    if (index === undefined) {
      let least = Infinity;
      palette.forEach((rgb, number) => {
        const distance = rgb.reduce((sum, value, part) => sum + (value - points[at + part]) ** 2, 0);
        if (distance < least) [least, index] = [distance, number];
      });
      nearest.set(key, index);
    }
    indices[at / 4] = index;
  }
  let text = "";
  const part = 8192;
  for (let at = 0; at < indices.length; at += part) {
    text += String.fromCharCode(...indices.subarray(at, at + part));
  }
  return { width: image.width, height: image.height, palette: palette.flat(), indices: btoa(text) };
}"""


def shrink(page: Page, picture: bytes) -> bytes:
    """The picture, a PNG, with at most 256 colours. `page` is any that the browser lets read data URLs."""
    found = page.evaluate(_REDUCE, base64.b64encode(picture).decode())
    width, height = found["width"], found["height"]
    points = base64.b64decode(found["indices"])
    lines = b"".join(b"\0" + points[start : start + width] for start in range(0, len(points), width))
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", bytes(found["palette"])),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
