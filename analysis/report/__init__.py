"""report.html and report.md of a study: the same content twice, every word and number read from its files."""

from collections import Counter
from collections.abc import Sequence

from analysis.figures import Drawn, draw_all
from analysis.figures.base import FIGURES_FOLDER
from analysis.figures.style import palette_of
from analysis.report.answer import answers
from analysis.report.choices import cards_of
from analysis.report.depth import depth_section
from analysis.report.document import Document, line
from analysis.report.evidence import (
    budget_section,
    figures_section,
    holdout_section,
    laws_section,
    models_section,
    multipliers_section,
    noise_section,
    pairs_section,
    residuals_section,
    sensitivity_section,
)
from analysis.report.facts import Facts
from analysis.report.html import to_html
from analysis.report.markdown import to_markdown
from analysis.report.record import checklist_section, counts_section, hovers, runs_section, versions_section
from analysis.study import Study
from analysis.wording import count_of
from attnres.files import write_text

HTML_FILE, MARKDOWN_FILE = "report.html", "report.md"


def write_report(study: Study) -> None:
    """Draw the figures and write report.html and report.md.

    Raises:
        UserError: a file is missing, or a number rests on a run that did not finish.
    """
    document = report_of(study, draw_all(study))
    folder = study.folder / FIGURES_FOLDER
    write_text(study.folder / HTML_FILE, to_html(document, lambda name: (folder / f"{name}.svg").read_text()))
    write_text(study.folder / MARKDOWN_FILE, to_markdown(document, FIGURES_FOLDER))


def report_of(study: Study, figures: Sequence[Drawn]) -> Document:
    """The report's content, with ``figures`` as they were drawn."""
    facts = Facts(study)
    facts.check_runs()
    palette = palette_of(study.plan.arms, study.plan.baseline)
    counts = facts.fits("counts")
    about = study.plan.description or study.plan.grid
    if about and about[-1] not in ".?!":
        about += "."
    lead = line(
        f"{about} " if about else "",
        f"{count_of(len(facts.arms), 'arm')} against {facts.baseline}; {counts['finished']} of "
        f"{count_of(counts['planned'], 'planned run')} finished.",
    )
    document = Document(
        title=f"How much compute does it save? Study {study.plan.study}",
        lead=lead,
        blocks=(
            cards_of(facts, palette),
            answers(facts),
            figures_section(figures, hovers(facts)),
            multipliers_section(facts),
            counts_section(facts),
            pairs_section(facts),
            sensitivity_section(facts),
            budget_section(facts),
            models_section(facts),
            noise_section(facts),
            holdout_section(facts),
            laws_section(facts),
            depth_section(facts),
            residuals_section(facts),
            checklist_section(facts),
            versions_section(facts),
            runs_section(facts),
        ),
        colours=tuple((style.colour, style.dark_colour) for style in palette.values()),
    )
    check_links(document)
    return document


def check_links(document: Document) -> None:
    """Every link has exactly one target (``ValueError``: a fault of the report's code, not of its user)."""
    targets = Counter(document.anchors())
    repeated = [anchor for anchor, number in targets.items() if number > 1]
    lost = sorted({link.anchor for link in document.links()} - set(targets))
    if repeated or lost:
        raise ValueError(f"report: anchors repeated {repeated}, links without a target {lost}")
