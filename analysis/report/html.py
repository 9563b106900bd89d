"""A `Document` as one HTML file: styles, program and figures inside, nothing fetched."""

import html
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from analysis.report.document import (
    Answers,
    Block,
    Bullets,
    Cards,
    Choice,
    Code,
    Document,
    Inline,
    Line,
    Link,
    Paragraph,
    Picture,
    Row,
    Section,
    Strong,
    Switch,
    Table,
)
from analysis.report.svg import inline_svg, width_of

WIDE = 300.0
"""Points beyond which a figure keeps its own width on a narrow screen and scrolls inside its frame."""
_ENLARGED = 1.55
"""Pixels a point of a figure is shown at, at most: 7 point text then reads like 11 pixels."""


def to_html(document: Document, read_svg: Callable[[str], str]) -> str:
    """The whole report.

    Args:
        document: what to write.
        read_svg: name of a figure -> text of its SVG file.
    """
    sections = [block for block in document.blocks if isinstance(block, Section)]
    contents = [tag("li", tag("a", escape(s.title), href=f"#{s.anchor}")) for s in sections]
    interactive = any(isinstance(block, Cards) for block in document.blocks)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", escape(document.title)),
        tag("style", _colour_rules(document) + _resource("page.css")),
    ]
    body = [
        tag("a", "Skip to the answer", class_="skip", href="#main"),
        tag("header", tag("h1", escape(document.title)), tag("p", _line(document.lead))),
        tag("main", *(_Writer(document, read_svg).block(block, 2) for block in document.blocks), id="main"),
        tag("nav", tag("h2", "Sections"), tag("ul", *contents), aria_label="Sections"),
        tag("script", _resource("page.js")) if interactive else "",
    ]
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n"


def tag(name: str, /, *inner: str, **attributes: str) -> str:
    """An element around ``inner`` HTML; ``aria_label`` is written aria-label, ``class_`` class."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value
    )
    if name in ("meta", "link"):
        return f"<{name}{written}>"
    gap = "\n" if len(inner) > 1 else ""
    return f"<{name}{written}>{gap.join(inner)}</{name}>"


def escape(text: str) -> str:
    """``text`` as HTML."""
    return html.escape(text, quote=True)


def _colour_rules(document: Document) -> str:
    light = "".join(f"--arm-{i}:{pair[0]};" for i, pair in enumerate(document.colours))
    dark = "".join(f"--arm-{i}:{pair[1]};" for i, pair in enumerate(document.colours))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


class _Writer:
    """Writes blocks; knows the figures and the colours of the arms."""

    def __init__(self, document: Document, read_svg: Callable[[str], str]) -> None:
        self.read_svg = read_svg
        self.colours = {light: f"var(--arm-{i})" for i, (light, _) in enumerate(document.colours)}

    def block(self, block: Block, level: int) -> str:
        if isinstance(block, Section):
            title = f"{block.anchor}-title"
            heading = tag(f"h{min(level, 6)}", escape(block.title), id=title)
            inner = [self.block(b, level + 1) for b in block.blocks]
            return tag("section", heading, *inner, id=block.anchor, aria_labelledby=title)
        if isinstance(block, Paragraph):
            return tag("p", _line(block.text))
        if isinstance(block, Bullets):
            return tag("ul", *(tag("li", _line(item)) for item in block.items))
        if isinstance(block, Table):
            return _table(block)
        if isinstance(block, Picture):
            return self.picture(block)
        if isinstance(block, Answers):
            return _answers(block)
        if isinstance(block, Cards):
            return _cards(block)
        raise TypeError(f"no HTML for {type(block).__name__}")

    def picture(self, picture: Picture) -> str:
        text = self.read_svg(picture.name)
        width = width_of(text)
        wide = width > WIDE
        drawing = inline_svg(text, picture.name, picture.title, picture.hovers, self.colours)
        size = f"max-width:{width * _ENLARGED:.0f}px" + (f";min-width:{width:.0f}px" if wide else "")
        inner = tag("div", drawing, style=size)
        frame = _scrolling("frame", picture.title, inner) if wide else tag("div", inner, class_="frame")
        caption = tag(
            "figcaption", tag("strong", escape(f"{picture.title}.")) + " " + escape(picture.caption)
        )
        return tag("figure", frame, caption, id=f"figure-{picture.name}", class_="wide" if wide else "narrow")


def _scrolling(kind: str, title: str, inner: str) -> str:
    """A part that scrolls sideways where it does not fit, with the keyboard too."""
    return tag("div", inner, class_=kind, tabindex="0", role="region", aria_label=title)


def _answers(block: Answers) -> str:
    parts = [
        tag("div", tag("h2", escape(question)), tag("ul", *(tag("li", _line(line)) for line in lines)))
        for question, lines in block.entries
    ]
    return tag("div", *parts, class_="answers")


def _cards(block: Cards) -> str:
    cards = [
        tag(
            "div",
            tag("p", tag("code", escape(card.arm)), class_="arm"),
            _shown(card.shown),
            class_="card",
            data_arm=card.arm,
            data_tone=card.shown.tone,
            style=f"--arm:var(--arm-{card.index})",
        )
        for card in block.cards
    ]
    choices = {
        arm: {key: asdict(choice) for key, choice in own.items()} for arm, own in block.choices.items()
    }
    switches = tag(
        "form", *map(_switch, block.switches), class_="switches", aria_label="What is counted, and how"
    )
    data = tag("script", _json(choices), type="application/json", id="choices")
    return "\n".join([tag("div", *cards, class_="cards", aria_live="polite"), switches, data])


def _shown(choice: Choice) -> str:
    number = tag("a", escape(choice.number), href=f"#{choice.behind}", data_part="number")
    parts = [tag("p", number, class_="number")]
    for name in ("interval", "verdict", "note"):
        parts.append(tag("p", escape(getattr(choice, name)), class_=name, data_part=name))
    return "\n".join(parts)


def _switch(switch: Switch) -> str:
    options = [tag("option", escape(words), value=value) for value, words in switch.options]
    return tag(
        "label", escape(switch.label), tag("select", *options, data_switch=switch.name, autocomplete="off")
    )


def _table(table: Table) -> str:
    kind = ["n" if i in table.numeric else "" for i in range(len(table.columns))]
    heads = [tag("th", escape(name), scope="col", class_=kind[i]) for i, name in enumerate(table.columns)]

    def row(one: Row) -> str:
        cells = (tag("td", _line(cell), class_=kind[i]) for i, cell in enumerate(one.cells))
        return tag("tr", "".join(cells), id=one.anchor)

    inner = tag(
        "table",
        tag("caption", escape(table.title)),
        tag("thead", tag("tr", *heads)),
        tag("tbody", "\n".join(map(row, table.rows))),
    )
    return _scrolling("table", table.title, inner)


def _line(line: Line) -> str:
    return "".join(_inline(part) for part in line)


def _inline(part: Inline) -> str:
    if isinstance(part, Link):
        return tag("a", escape(part.text), href=f"#{part.anchor}")
    if isinstance(part, Code):
        return tag("code", escape(part.text))
    if isinstance(part, Strong):
        return tag("strong", escape(part.text))
    return escape(part)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True).replace("<", "\\u003c")


def _resource(name: str) -> str:
    return files("analysis.report").joinpath(name).read_text(encoding="utf-8")
