"""The number a study is about, read from multipliers.csv: pair + slope, matched rates, exact FLOPs."""

from dataclasses import dataclass

import pandas as pd

from analysis.comparison import HEADLINE, MATCHED
from analysis.compute_axes import EXACT
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
