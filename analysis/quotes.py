"""Numbers in documents come from committed results: a marked span is filled in, and checked in CI.

A document holds ``<!--= paper block_attnres 6nd -->1.239 [1.189, 1.291]<!--/-->``: study (a folder of
results/), arm and compute axis. What stands between the marks is replaced by the headline multiplier of that
row; a refusal by "not resolved: " and its reason. The claim of the paper is ``paper claim``.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.comparison import HEADLINE, MATCHED
from analysis.headline import Multiplier, multiplier_of
from analysis.published.attnres_scaling import CLAIM
from analysis.schema import MULTIPLIER_COLUMNS
from analysis.study import MULTIPLIERS_FILE
from analysis.tabular import read_table
from attnres.errors import UserError
from attnres.files import write_text

_MARK = re.compile(r"(<!--= *([^>]*?) *-->)(.*?)(<!--/-->)", re.DOTALL)


def fill_quotes(documents: Sequence[Path], results: Path, *, check: bool = False) -> list[str]:
    """Fill the marked spans of ``documents``; returns a line for each that was out of date.

    Args:
        documents: Markdown files.
        results: folder of the studies.
        check: leave the files alone, only report.

    Raises:
        UserError: a mark that names no committed number; document and mark are named.
    """
    stale = []
    for path in documents:
        old = path.read_text(encoding="utf-8")

        def filled(match: re.Match[str], path: Path = path) -> str:
            value = _quoted(match.group(2), results, path)
            if match.group(3) != value:
                stale.append(f"{path}: {match.group(2)} is {value}, not {match.group(3) or 'empty'}")
            return f"{match.group(1)}{value}{match.group(4)}"

        new = _MARK.sub(filled, old)
        if new != old and not check:
            write_text(path, new)
    return stale


def _quoted(key: str, results: Path, document: Path) -> str:
    """The text that a mark stands for."""
    words = key.split()
    if words == ["paper", "claim"]:
        return f"{CLAIM.compute_multiplier:g}"
    if len(words) != 3:
        raise UserError(f"{document}: '{key}' is no mark: STUDY ARM AXIS, or paper claim")
    study, arm, axis = words
    path = results / study / MULTIPLIERS_FILE
    table = read_table(path, MULTIPLIER_COLUMNS, required=False)
    found = table[
        (table["variant"] == arm)
        & (table["estimator"] == HEADLINE)
        & (table["compute_axis"] == axis)
        & (table["rate"] == MATCHED)
    ]
    if len(found) == 0:
        raise UserError(f"{document}: {path} has no headline of '{arm}' on '{axis}'")
    return _text(multiplier_of(pd.Series(found.iloc[0])))


def _text(m: Multiplier) -> str:
    if m.value is None or m.lo is None or m.hi is None:
        return f"not resolved: {m.reason}"
    return f"{m.value:.3f} [{m.lo:.3f}, {m.hi:.3f}]"
