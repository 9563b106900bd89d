"""The registry of the paper's figures, their arms, and the words of the arms."""

from analysis.figures.base import Figure
from analysis.figures.style import palette_of
from analysis.paper.numbers import Numbers
from analysis.published.attnres_scaling import BASELINE, BLOCK, FULL, MHC
from attnres.registry import Registry

PAPER_FIGURES: Registry[type[Figure[Numbers]]] = Registry("figure of the paper", "analysis.paper.figures")

PALETTE = palette_of((BASELINE, BLOCK, FULL, MHC), BASELINE)
