"""What a figure is: a table of what is drawn, made from a study's files, and a drawing of that table.

Drawing sees the table alone, as it was written and read back: the data file beside a figure is all that
is needed to draw it again. Figures never fit.
"""

import csv
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.figures.style import FORMATS, Palette, palette_of, save, styled
from analysis.study import Study
from attnres.files import remove_leftovers, write_text
from attnres.registry import Registry

FIGURES_FOLDER = "figures"
RUN_GID = "run-"
"""Artists of one run carry this and its spec_id as their id in the SVG; the report hangs its facts there."""


Source = TypeVar("Source")


class NotDrawn(Exception):  # noqa: N818 (a finding, not an error)
    """A study has nothing to show in a figure; ``str`` says why."""


class Figure(ABC, Generic[Source]):
    """One picture of a source, say a study. Abstract or final; one file and one registration each.

    Class attributes:
        title: what it shows, a few words.
        needs: files of the study it reads.
        rank: place in the report, the smallest first.
    """

    title: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    rank: ClassVar[int]

    @abstractmethod
    def table(self, source: Source) -> pd.DataFrame:
        """Everything that will be drawn, one row an item.

        Raises:
            NotDrawn: the source has nothing to show here.
        """

    @abstractmethod
    def draw(self, table: pd.DataFrame, palette: Palette) -> Canvas:
        """The picture of ``table``. Called inside `style.styled`."""

    @abstractmethod
    def caption(self, table: pd.DataFrame) -> str:
        """What is drawn and how to read it, computed from the table."""


FIGURES: Registry[type[Figure[Study]]] = Registry("figure", "analysis.figures")


@dataclass(frozen=True)
class Drawn:
    """A figure that was asked for: its files, or why there are none."""

    name: str
    title: str
    caption: str = ""
    missing: str = ""

    @property
    def exists(self) -> bool:
        """Whether it was drawn."""
        return not self.missing


def draw(study: Study, name: str) -> Drawn:
    """Draw the figure ``name`` into the study's figures/: csv, svg, pdf, png; or remove stale ones."""
    figure = FIGURES.get(name)()
    folder = study.folder / FIGURES_FOLDER
    absent = [needed for needed in figure.needs if not (study.folder / needed).exists()]
    if absent:
        return _without(folder, name, figure, f"needs {', '.join(absent)}")
    return draw_into(folder, name, figure, study, palette_of(study.plan.arms, study.plan.baseline))


def draw_into(folder: Path, name: str, figure: Figure[Source], source: Source, palette: Palette) -> Drawn:
    """Write the data of ``figure``, read it back and draw it; or remove what is stale and say why."""
    try:
        table = figure.table(source)
    except NotDrawn as reason:
        return _without(folder, name, figure, str(reason))
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    path = folder / f"{name}.csv"
    write_text(path, table.to_csv(index=False, lineterminator="\n"))
    table = read_data(path)
    with styled():
        save(figure.draw(table, palette), folder / name)
    return Drawn(name, figure.title, caption=figure.caption(table))


def _without(folder: Path, name: str, figure: Figure[Source], reason: str) -> Drawn:
    for kind in (*FORMATS, "csv"):
        (folder / f"{name}.{kind}").unlink(missing_ok=True)
    return Drawn(name, figure.title, missing=reason)


_TEXT = {"spec_id", "size", "variant"}
"""Columns that are text even where every value looks like a number."""


def read_data(path: Path) -> pd.DataFrame:
    """The data file of a figure: numbers exactly as they were written (absent: NaN), text, true or false."""
    with open(path, newline="", encoding="utf-8") as handle:
        header, *lines = list(csv.reader(handle))
    return pd.DataFrame(
        {name: _parsed(name, [line[i] for line in lines]) for i, name in enumerate(header)}, columns=header
    )


def _parsed(name: str, texts: list[str]) -> list[str] | list[float] | list[bool]:
    if name in _TEXT:
        return texts
    if texts and set(texts) <= {"True", "False"}:
        return [text == "True" for text in texts]
    try:
        return [float(text) if text else math.nan for text in texts]
    except ValueError:
        return texts
