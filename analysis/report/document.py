"""What a report consists of, apart from how it is written down: `html` and `markdown` render these nodes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.wording import MISSING, is_missing

RUN_ANCHOR = "run-"
"""Anchor of a run's row: this and its spec_id."""


@dataclass(frozen=True)
class Link:
    """Text that leads to an anchor of the same page."""

    text: str
    anchor: str


@dataclass(frozen=True)
class Code:
    """An identifier: an arm, a file, a command."""

    text: str


@dataclass(frozen=True)
class Strong:
    """Words that carry the statement."""

    text: str


Inline = str | Link | Code | Strong
Line = tuple[Inline, ...]


def line(*parts: Inline | Line) -> Line:
    """Parts and lines joined into one line."""
    flat: list[Inline] = []
    for part in parts:
        flat += part if isinstance(part, tuple) else (part,)
    return tuple(flat)


def run_link(spec_id: str) -> Link:
    """A link to the row of a run."""
    return Link(spec_id, f"{RUN_ANCHOR}{spec_id}")


def joined(parts: Sequence[Inline], separator: str = ", ") -> Line:
    """``parts`` with ``separator`` between them."""
    out: list[Inline] = []
    for i, part in enumerate(parts):
        out += [separator, part] if i else [part]
    return tuple(out)


@dataclass(frozen=True)
class Paragraph:
    """One or more sentences."""

    text: Line


@dataclass(frozen=True)
class Bullets:
    """A list of lines."""

    items: tuple[Line, ...]


@dataclass(frozen=True)
class Row:
    """One row of a table; ``anchor`` makes it a target."""

    cells: tuple[Line, ...]
    anchor: str = ""


def row(*values: Any, anchor: str = "") -> Row:
    """A row of ``values``: lines as they are, anything else as its text, no value as a dash."""
    return Row(tuple(_cell(value) for value in values), anchor)


def _cell(value: Any) -> Line:
    if isinstance(value, tuple):
        return value
    if isinstance(value, Link | Code | Strong):
        return (value,)
    return (MISSING if is_missing(value) else str(value),)


@dataclass(frozen=True)
class Table:
    """A table; ``numeric`` columns are aligned right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    numeric: frozenset[int] = frozenset()


def table(title: str, columns: str, rows: Iterable[Row]) -> Table:
    """A table whose ``columns`` are "name | >number | ...": a leading > aligns right."""
    names = [name.strip() for name in columns.split("|")]
    numeric = frozenset(i for i, name in enumerate(names) if name.startswith(">"))
    return Table(title, tuple(name.removeprefix(">") for name in names), tuple(rows), numeric)


@dataclass(frozen=True)
class Picture:
    """A figure of the study by its files; ``hovers`` are texts for the points of runs, by spec_id."""

    name: str
    title: str
    caption: str
    hovers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A multiplier as it is shown: words only, so that page and program cannot format it differently."""

    number: str
    interval: str
    verdict: str
    tone: str
    """good, bad or open: what the verdict says."""
    note: str
    behind: str
    """Anchor of the runs behind it."""


@dataclass(frozen=True)
class Card:
    """The headline of one arm, with what the switches may put in its place."""

    arm: str
    index: int
    shown: Choice


@dataclass(frozen=True)
class Switch:
    """A choice the reader has: its label and (value, words) options, the first one shown at the start."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cards:
    """The headline of every arm side by side.

    ``choices``: arm -> "value of switch 1|value of switch 2|..." -> what the card shows then.
    """

    cards: tuple[Card, ...]
    switches: tuple[Switch, ...]
    choices: dict[str, dict[str, Choice]]


@dataclass(frozen=True)
class Answers:
    """Questions and the lines that answer them."""

    entries: tuple[tuple[str, tuple[Line, ...]], ...]


Block = Any
"""Paragraph, Bullets, Table, Picture, Cards, Answers or Section."""


@dataclass(frozen=True)
class Section:
    """A titled part; sections nest."""

    title: str
    anchor: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: Line
    blocks: tuple[Block, ...]
    colours: tuple[tuple[str, str], ...]
    """(light, dark) colour of each arm, by its index."""

    def lines(self) -> Iterator[Line]:
        """Every line of text in it."""
        yield self.lead
        for block in self.blocks:
            yield from _lines(block)

    def anchors(self) -> list[str]:
        """Every target in it, in order."""
        return [anchor for block in self.blocks for anchor in _anchors(block)]

    def links(self) -> list[Link]:
        """Every link in it, in order."""
        found = [part for one in self.lines() for part in one if isinstance(part, Link)]
        for block in self.blocks:
            if isinstance(block, Cards):
                hidden = (choice for own in block.choices.values() for choice in own.values())
                found += [Link(choice.number, choice.behind) for choice in hidden]
        return found


def _lines(block: Block) -> Iterator[Line]:
    if isinstance(block, Paragraph):
        yield block.text
    elif isinstance(block, Bullets):
        yield from block.items
    elif isinstance(block, Table):
        for one in block.rows:
            yield from one.cells
    elif isinstance(block, Answers):
        for _, lines in block.entries:
            yield from lines
    elif isinstance(block, Cards):
        for card in block.cards:
            yield line(
                Code(card.arm), " ", Link(card.shown.number, card.shown.behind), f" {card.shown.verdict}"
            )
    elif isinstance(block, Section):
        for inner in block.blocks:
            yield from _lines(inner)


def _anchors(block: Block) -> Iterator[str]:
    if isinstance(block, Section):
        yield block.anchor
        for inner in block.blocks:
            yield from _anchors(inner)
    elif isinstance(block, Table):
        yield from (one.anchor for one in block.rows if one.anchor)
