"""What the tests of figures look at: boxes of text, and what a PDF consists of."""

import itertools
import re
import zlib

from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text


def overlaps(figure: Canvas) -> list[str]:
    """Pairs of texts whose boxes meet, and texts that leave the canvas."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and shown(text, figure):
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
    width, height = figure.canvas.get_width_height()
    faults = [
        f"'{words}' leaves the canvas: {box.extents.round(1)} of {width} x {height}"
        for words, box in boxes
        if box.x0 < -0.5 or box.y0 < -0.5 or box.x1 > width + 0.5 or box.y1 > height + 0.5
    ]
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5:
            faults.append(f"'{one}' meets '{other}'")
    return faults


def shown(text: Text, figure: Canvas) -> bool:
    """Whether ``text`` is on a visible panel, and, for a tick label, within its axis."""
    for axes in figure.axes:
        if not axes.get_visible() and text in axes.findobj(Text):
            return False
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if text in (tick.label1, tick.label2):
                    return low <= tick.get_loc() <= high
    return True


def streams(data: bytes) -> list[bytes]:
    """The streams of a PDF, unpacked."""
    found = []
    for match in re.finditer(rb"(?<!end)stream\r?\n", data):
        end = data.index(b"endstream", match.end())
        try:
            found.append(zlib.decompress(data[match.end() : end].rstrip(b"\r\n")))
        except zlib.error:
            found.append(data[match.end() : end])
    return found


def pdf_text(data: bytes) -> str:
    """Text of a PDF: codes shown in content streams, through the fonts' ToUnicode maps."""
    maps: dict[int, str] = {}
    for stream in streams(data):
        for block in re.findall(rb"beginbfchar(.*?)endbfchar", stream, re.S):
            for code, value in re.findall(rb"<([0-9a-fA-F]+)>\s*<([0-9a-fA-F]+)>", block):
                maps[int(code, 16)] = bytes.fromhex(value.decode()).decode("utf-16-be")
        for block in re.findall(rb"beginbfrange(.*?)endbfrange", stream, re.S):
            for first, last, values in re.findall(
                rb"<([0-9a-fA-F]+)>\s*<([0-9a-fA-F]+)>\s*\[([^\]]*)\]", block
            ):
                texts = re.findall(rb"<([0-9a-fA-F]+)>", values)
                for code, value in zip(range(int(first, 16), int(last, 16) + 1), texts, strict=True):
                    maps[code] = bytes.fromhex(value.decode()).decode("utf-16-be")
    return "".join(maps.values())
