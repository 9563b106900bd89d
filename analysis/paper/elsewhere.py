"""What others measured: differences in nats, and a multiplier with its interval where sizes suffice."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from analysis.multipliers.base import LEVEL, MIN_SIZES, RefusalError
from analysis.multipliers.pair_slope import pair_slope_at
from analysis.paper.table2 import arms_of, estimate_row
from analysis.published.replications import (
    MARIN_ASYMPTOTE,
    MARIN_EXPONENT,
    MARIN_SPEED_UP,
    MARIN_SPEED_UP_THROUGHPUT_ADJUSTED,
    REPLICATIONS,
    UNSPECIFIED,
    Replication,
)

MARIN = "marin-community/marin#9290"


def difference_rows() -> Iterator[dict[str, Any]]:
    """Every published pair: baseline minus arm in nats a token (perplexities through their logarithm)."""
    for row in REPLICATIONS:
        for variant, value in row.arms.items():
            yield {
                "source": row.source,
                "setting": row.setting,
                "data": row.data,
                "params": row.params,
                "tokens": row.tokens,
                "metric": row.metric,
                "variant": variant,
                "baseline_value": row.baseline,
                "variant_value": value,
                "difference_nats": _nats(row, row.baseline, value),
                "seeds": row.seeds,
                "caveat": row.caveat,
            }


def _nats(row: Replication, baseline: float, value: float) -> float | None:
    """Bits a byte cannot be turned into nats a token without the tokeniser."""
    if row.metric == "perplexity":
        return math.log(baseline / value)
    return None if row.metric == "bits_per_byte" else baseline - value


def multiplier_rows() -> Iterator[dict[str, Any]]:
    """Sources with at least `MIN_SIZES` sizes through the headline estimator (E = 0), compute 6 N D."""
    for source in dict.fromkeys(row.source for row in REPLICATIONS):
        own = [row for row in REPLICATIONS if row.source == source and row.metric == "loss"]
        usable = [row for row in own if row.params is not None and row.tokens is not None]
        sizes = [f"{row.params / 1e6:g}M" for row in usable if row.params is not None]
        if len(set(sizes)) < MIN_SIZES:
            continue
        params = np.array([row.params for row in usable], dtype=float)
        tokens = np.array([row.tokens for row in usable], dtype=float)
        for variant in usable[0].arms:
            arms = arms_of(
                variant,
                "baseline",
                "6nd",
                sizes=sizes,
                params=params,
                tokens=tokens,
                compute=6 * params * tokens,
                loss_baseline=np.array([row.baseline for row in usable]),
                loss_variant=np.array([row.arms[variant] for row in usable]),
            )
            try:
                yield {"source": source} | estimate_row(arms, "pair_slope", pair_slope_at(arms, LEVEL, 0.0))
            except RefusalError as refusal:
                yield {"source": source, "variant": variant, "status": f"refused: {refusal}"}


def marin_rows() -> Iterator[dict[str, Any]]:
    """Marin's two sizes through its own formula, beside what it states."""
    rows = [row for row in REPLICATIONS if row.source == MARIN]
    for row, stated, adjusted in zip(rows, MARIN_SPEED_UP, MARIN_SPEED_UP_THROUGHPUT_ADJUSTED, strict=True):
        for variant, loss in row.arms.items():
            excess = (row.baseline - MARIN_ASYMPTOTE) / (loss - MARIN_ASYMPTOTE)
            attn = variant == UNSPECIFIED
            yield {
                "source": row.source,
                "setting": row.setting,
                "variant": variant,
                "compute_multiplier": excess ** (1 / MARIN_EXPONENT),
                "stated": stated if attn else None,
                "stated_wall": adjusted if attn else None,
            }
