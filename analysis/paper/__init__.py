"""``make paper``: the published numbers through this project's own analysis, and its results beside others.

Writes results/paper/: tables, fits/, figures/, paper.html and paper.md. Needs no study; whatever committed
studies there are beside it, their headlines join the page.
"""

from pathlib import Path

from analysis.figures.base import FIGURES_FOLDER, draw_into
from analysis.paper.figures.base import PALETTE, PAPER_FIGURES
from analysis.paper.numbers import compute_numbers, write_numbers
from analysis.paper.page import page_of
from analysis.paper.sections import shown
from analysis.published.attnres_scaling import VARIANTS
from analysis.report import check_links
from analysis.report.html import to_html
from analysis.report.markdown import to_markdown
from attnres.files import write_text

HTML_FILE, MARKDOWN_FILE = "paper.html", "paper.md"


def write_paper(folder: Path, results: Path) -> list[str]:
    """Write everything about the paper into ``folder``; returns its multipliers as lines for people.

    Args:
        folder: results/paper.
        results: this project's studies, whose headlines join the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = compute_numbers(results)
    write_numbers(folder, numbers)
    pictures = folder / FIGURES_FOLDER
    names = sorted(PAPER_FIGURES, key=lambda name: (PAPER_FIGURES.get(name).rank, name))
    figures = [draw_into(pictures, name, PAPER_FIGURES.get(name)(), numbers, PALETTE) for name in names]
    document = page_of(numbers, figures)
    check_links(document)
    write_text(folder / HTML_FILE, to_html(document, lambda name: (pictures / f"{name}.svg").read_text()))
    write_text(folder / MARKDOWN_FILE, to_markdown(document, FIGURES_FOLDER))
    answers = (numbers.answer(variant) for variant in VARIANTS)
    return [f"{m['variant']:16s} {shown(m)}  {m['verdict']}" for m in answers]
