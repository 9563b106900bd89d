"""A figure's SVG made part of a page: its own ids, the page's colours, a text at the points of each run."""

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from analysis.figures.base import RUN_GID
from analysis.figures.style import GRID, INK, MUTED, PAPER

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

_THEME = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    "#000000": "var(--ink)",
}


def inline_svg(
    text: str, name: str, title: str, hovers: Mapping[str, str], arm_colours: Mapping[str, str]
) -> str:
    """``text`` of an SVG file as an element for HTML.

    Args:
        text: the file.
        name: of the figure; prefixes every id, so that several figures fit into one page.
        title: read out in place of the picture.
        hovers: spec_id -> words at its points.
        arm_colours: colour in the file -> CSS colour.
    """
    root = ElementTree.fromstring(text)
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"{name}-{element.attrib['id']}")
        for key, value in list(element.attrib.items()):
            if key in ("href", f"{{{XLINK}}}href"):  # HTML knows no name space but xlink's own prefix
                del element.attrib[key]
                element.set("href", f"#{name}-{value[1:]}" if value.startswith("#") else value)
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
        for key in {"style", "fill", "stroke"} & set(element.attrib):
            element.set(key, _recoloured(element.attrib[key], arm_colours))
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    _hang_texts(root, name, hovers)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", title)
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


def width_of(text: str) -> float:
    """Width of an SVG file in points."""
    found = re.search(r'<svg[^>]*\bwidth="([0-9.]+)pt"', text)
    if found is None:
        raise ValueError("an SVG without a width in points")
    return float(found.group(1))


def _recoloured(style: str, arm_colours: Mapping[str, str]) -> str:
    for colour, variable in {**_THEME, **arm_colours}.items():
        style = style.replace(colour, variable)
    return style


def _hang_texts(root: ElementTree.Element, name: str, hovers: Mapping[str, str]) -> None:
    prefix = f"{name}-{RUN_GID}"
    for element in root.iter(f"{{{SVG}}}g"):
        own = element.attrib.get("id", "")
        if own.startswith(prefix) and own.removeprefix(prefix) in hovers:
            spec_id = own.removeprefix(prefix)
            del element.attrib["id"]  # a run may have many points, an id may not
            element.set("data-run", spec_id)
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = hovers[spec_id]
            element.insert(0, title)
