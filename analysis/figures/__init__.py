"""Pictures of a study, each with its data beside it: one file, one registration each.

``draw_all(study)`` is the stage ``analysis figures``.
"""

from collections.abc import Collection

from analysis.figures.base import FIGURES, Drawn, draw
from analysis.study import Study

__all__ = ["FIGURES", "Drawn", "draw", "draw_all"]


def draw_all(study: Study, only: Collection[str] | None = None) -> list[Drawn]:
    """Draw every registered figure (or those named in ``only``) into the study's figures/, by rank.

    Raises:
        UserError: ``only`` names a figure that does not exist.
    """
    names = sorted(FIGURES, key=lambda name: (FIGURES.get(name).rank, name))
    return [draw(study, name) for name in (names if only is None else only)]
