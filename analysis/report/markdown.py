"""A `Document` as Markdown: the same content as the page, figures by reference."""

from analysis.report.document import (
    Answers,
    Block,
    Bullets,
    Cards,
    Code,
    Document,
    Inline,
    Line,
    Link,
    Paragraph,
    Picture,
    Section,
    Strong,
    Table,
)
from analysis.wording import MISSING


def to_markdown(document: Document, pictures: str) -> str:
    """The whole report; ``pictures`` is the folder of the figures, relative to the file."""
    parts = [f"# {document.title}", _line(document.lead)]
    parts += [_block(block, 2, pictures) for block in document.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, level: int, pictures: str) -> str:
    if isinstance(block, Section):
        title = f'{"#" * min(level, 6)} <a id="{block.anchor}"></a>{_escape(block.title)}'
        return "\n\n".join([title, *(_block(inner, level + 1, pictures) for inner in block.blocks)])
    if isinstance(block, Paragraph):
        return _line(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_line(item)}" for item in block.items)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Picture):
        title = _escape(block.title)
        return f"![{title}]({pictures}/{block.name}.svg)\n\n**{title}.** {_escape(block.caption)}"
    if isinstance(block, Answers):
        return "\n\n".join(
            f"**{question}**\n\n" + "\n".join(f"- {_line(answer)}" for answer in answers)
            for question, answers in block.entries
        )
    if isinstance(block, Cards):
        return _cards(block)
    raise TypeError(f"no Markdown for {type(block).__name__}")


def _cards(cards: Cards) -> str:
    rows = [
        f"| {_inline(Code(card.arm))} | {_inline(Link(card.shown.number, card.shown.behind))} "
        f"| {_escape(card.shown.interval) or MISSING} | {_escape(card.shown.verdict)} "
        f"| {_escape(card.shown.note)} |"
        for card in cards.cards
    ]
    return "\n".join(["| arm | compute multiplier | interval | verdict | |", "|---|---|---|---|---|", *rows])


def _table(table: Table) -> str:
    marks = ["---:" if i in table.numeric else "---" for i in range(len(table.columns))]
    lines = [
        f"**{_escape(table.title)}**",
        "",
        "| " + " | ".join(map(_escape, table.columns)) + " |",
        "|" + "|".join(marks) + "|",
    ]
    for row in table.rows:
        cells = [_line(cell) for cell in row.cells]
        if row.anchor:
            cells[0] = f'<a id="{row.anchor}"></a>{cells[0]}'
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _line(line: Line) -> str:
    return "".join(_inline(part) for part in line)


def _inline(part: Inline) -> str:
    if isinstance(part, Link):
        return f"[{_escape(part.text)}](#{part.anchor})"
    if isinstance(part, Code):
        return f"`{part.text}`"
    if isinstance(part, Strong):
        return f"**{_escape(part.text)}**"
    return _escape(part)


def _escape(text: str) -> str:
    for character in "\\`*_[]<>|":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")
