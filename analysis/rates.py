"""Learning rates: the best trained one of each arm and size, and the comparison at each arm's own best."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from analysis.multipliers.base import RefusalError, RefusalReason
from analysis.pairing import Pairs, match_pairs

MIN_RATES = 3
"""Rates an arm must have been trained at, at one size, before one of them is called its best."""


@dataclass(frozen=True)
class BestRate:
    """The rates of one arm at one size and budget."""

    variant: str
    size: str
    budget: float
    rates: list[float]
    seeds: list[int]
    """Seeds that every one of the rates was trained with."""
    losses: list[float]
    """Mean over those seeds: seeds that some rates lack would move the rates against each other."""
    best: float
    optimum: float | None
    """Vertex of the parabola in ln lr through the best rate and its neighbours; None at an edge."""
    at_edge: bool

    def as_dict(self) -> dict[str, object]:
        """For fits/rates.json."""
        return asdict(self)


@dataclass(frozen=True)
class NoBestRate:
    """An arm, size and budget that was trained at enough rates, but with no seed that all of them share."""

    variant: str
    size: str
    budget: float
    rates: list[float]

    def words(self) -> str:
        """What a reader must know."""
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        return f"{self.variant} at {self.size}: the rates {rates} share no seed, so none can be called best"


def best_rates(cells: pd.DataFrame) -> list[BestRate]:
    """Best rate of every arm and rung that was trained at `MIN_RATES` rates or more with a common seed."""
    return [found for found in _compared(cells) if isinstance(found, BestRate)]


def rates_without_common_seed(cells: pd.DataFrame) -> list[NoBestRate]:
    """The arms and rungs whose rates cannot be compared; a report says so."""
    return [found for found in _compared(cells) if isinstance(found, NoBestRate)]


def _compared(cells: pd.DataFrame) -> Iterator[BestRate | NoBestRate]:
    used = cells[cells["role"].isin(["ladder", "rate"]) & ~cells["excluded"].astype(bool)]
    for key, runs in used.groupby(["variant", "size", "budget"], sort=True):
        variant, size, budget = str(key[0]), str(key[1]), float(str(key[2]))
        seeds_of = runs.groupby("lr")["seed"].agg(set).sort_index()
        if len(seeds_of) < MIN_RATES:
            continue
        rates = seeds_of.index.to_numpy(float)
        seeds = sorted(int(seed) for seed in set.intersection(*seeds_of))
        if not seeds:
            yield NoBestRate(variant, size, budget, rates.tolist())
            continue
        shared = runs[runs["seed"].isin(seeds)]
        losses = shared.groupby("lr")["val_loss"].mean().sort_index().to_numpy(float)
        at = int(np.argmin(losses))
        edge = at in (0, len(rates) - 1)
        optimum = None if edge else _vertex(np.log(rates[at - 1 : at + 2]), losses[at - 1 : at + 2])
        best = float(rates[at])
        yield BestRate(variant, size, budget, rates.tolist(), seeds, losses.tolist(), best, optimum, edge)


def _vertex(x: np.ndarray, y: np.ndarray) -> float:
    """exp of the abscissa of the lowest point of the parabola through three points."""
    a, b, _ = np.polyfit(x - x[1], y, 2)
    return float(np.exp(x[1] - b / (2 * a))) if a > 0 else float(np.exp(x[1]))


def tuned_pairs(cells: pd.DataFrame, baseline: str, variant: str, allow: Collection[str] = ()) -> Pairs:
    """Pairs in which each arm stands at its own best trained rate.

    Raises:
        RefusalError: a size of either arm was not trained at `MIN_RATES` rates, or its best is at the edge.
    """
    best = {(b.variant, b.size, b.budget): b for b in best_rates(cells)}
    rungs = [
        (size, budget)
        for _, size, budget in best
        if (baseline, size, budget) in best and (variant, size, budget) in best
    ]
    rungs = list(dict.fromkeys(rungs))
    if not rungs:
        apart = [no.words() for no in rates_without_common_seed(cells) if no.variant in (baseline, variant)]
        words = "; ".join(apart) or f"no size has {MIN_RATES} rates in both {baseline} and {variant}"
        raise RefusalError(RefusalReason.NO_RATES, words)
    edges = [
        f"{b.variant} {b.size} at {b.best:g}"
        for b in best.values()
        if b.at_edge and b.variant in (baseline, variant)
    ]
    if edges:
        raise RefusalError(
            RefusalReason.NO_RATES,
            f"best rate at the edge of those tried: {', '.join(edges)}; try further ones",
        )
    used = cells[cells["role"].isin(["ladder", "rate"]) & cells["variant"].isin([baseline, variant])]
    keep = [
        (v, s, b) in best and (s, b) in rungs and lr == best[(v, s, b)].best
        for v, s, b, lr in zip(used["variant"], used["size"], used["budget"], used["lr"], strict=True)
    ]
    chosen = used[keep]
    ids = [
        f"{s}/{b:.6g}/{seed}"
        for s, b, seed in zip(chosen["size"], chosen["budget"], chosen["seed"], strict=True)
    ]
    chosen = chosen.assign(pair_id=ids, role="ladder").drop_duplicates(["pair_id", "variant"])
    return match_pairs(chosen, baseline, variant, allow={*allow, "lr", "warmup", "recipe"})
