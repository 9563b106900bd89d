"""The number a study is about, read from multipliers.csv: pair + slope, matched rates, exact FLOPs."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from analysis.comparison import HEADLINE, MATCHED, Comparison, Question
from analysis.compute_axes import EXACT
from analysis.multipliers.base import PairedArms, RefusalError
from analysis.pairing import MUST_AGREE
from analysis.study import Study
from attnres.errors import UserError


@dataclass(frozen=True)
class Multiplier:
    """One row of multipliers.csv. ``value``, ``lo`` and ``hi`` are None where it was refused."""

    variant: str
    value: float | None
    lo: float | None
    hi: float | None
    level: float
    n_pairs: int
    form: str
    irreducible: str
    at: float | None
    """FLOPs it holds at; None if it is constant."""
    extrapolated: bool
    verdict: str
    status: str

    @property
    def reason(self) -> str:
        """Why there is no number; "" where there is one."""
        return "" if self.value is not None else self.status.removeprefix("refused: ")


def headline_of(study: Study, variant: str, axis: str = EXACT, rate: str = MATCHED) -> Multiplier:
    """The headline multiplier of ``variant`` on a compute axis.

    Raises:
        UserError: multipliers.csv has no such row.
    """
    table = study.multipliers
    found = table[
        (table["variant"] == variant)
        & (table["estimator"] == HEADLINE)
        & (table["compute_axis"] == axis)
        & (table["rate"] == rate)
    ]
    if len(found) == 0:
        raise UserError(
            f"{study.folder}/multipliers.csv: no row for {variant}, {HEADLINE}, {axis}, {rate}; "
            f"make it again with: python -m analysis multipliers --study {study.folder}"
        )
    return multiplier_of(found.iloc[0])


def multiplier_of(row: pd.Series) -> Multiplier:
    """A row of multipliers.csv."""

    def number(name: str) -> float | None:
        return None if pd.isna(row[name]) else float(row[name])

    return Multiplier(
        variant=str(row["variant"]),
        value=number("compute_multiplier"),
        lo=number("lo"),
        hi=number("hi"),
        level=float(row["level"]),
        n_pairs=int(row["n_pairs"]),
        form=str(row["form"]),
        irreducible=str(row["irreducible"]),
        at=number("at"),
        extrapolated=bool(row["extrapolated"]),
        verdict=str(row["verdict"]),
        status=str(row["status"]),
    )


def pairs_behind(study: Study, questions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], PairedArms]:
    """(arm, rate) -> the run pairs behind its multipliers, for those that have any.

    Columns in which pairs differ were refused or allowed when multipliers.csv was written; here every
    difference is let through, so that it shows among the notes of the pairs.
    """
    comparison = Comparison(study, MUST_AGREE)
    found = {}
    for arm, rate in questions:
        try:
            found[arm, rate] = comparison.arms(Question(arm, HEADLINE, EXACT, rate))
        except RefusalError:
            continue
    return found
