"""Controls from trained runs: the baseline against itself at other seeds, where m must be 1."""

from collections.abc import Collection

import numpy as np
import pandas as pd

from analysis.multipliers.base import RefusalError, RefusalReason
from analysis.pairing import Pairs, match_pairs


def null_pairs(cells: pd.DataFrame, baseline: str, label: str, allow: Collection[str] = ()) -> Pairs:
    """Baseline runs of one seed against baseline runs of another, size by size.

    Cells of role ``null`` are the second arm where the plan has any; else the later half of the
    ladder's seeds is.

    Raises:
        RefusalError: no size has two finished seeds.
    """
    own = cells[(cells["variant"] == baseline) & ~cells["excluded"].astype(bool)]
    ladder = own[own["role"] == "ladder"].sort_values(["budget", "size", "seed"])
    other = own[own["role"] == "null"].sort_values(["budget", "size", "seed"])
    if len(other) == 0:
        rank = ladder.groupby(["budget", "size"]).cumcount()
        total = ladder.groupby(["budget", "size"])["seed"].transform("size")
        half = total // 2
        ladder, other = ladder[rank < half], ladder[(rank >= half) & (rank < 2 * half)]
    if len(ladder) == 0 or len(other) == 0:
        raise RefusalError(RefusalReason.NO_PAIRS, f"no size of {baseline} has two finished seeds")
    first, second = _matched(ladder), _matched(other)
    # Seeds differ on purpose: the pairs are made by rank, and the seed columns are set equal.
    second = second.assign(
        variant=label,
        seed=first["seed"].reindex(second.index),
        data_seed=first["data_seed"].reindex(second.index),
    )
    both = pd.concat([first.assign(pair_id=first.index), second.assign(pair_id=second.index)])
    return match_pairs(both.assign(role="ladder"), baseline, label, allow=allow)


def _matched(runs: pd.DataFrame) -> pd.DataFrame:
    """Rows indexed by size, budget and rank of the seed."""
    rank = runs.groupby(["budget", "size"]).cumcount()
    index = [
        f"{s}/{b:.6g}/{k}" for s, b, k in zip(runs["size"], runs["budget"], np.asarray(rank), strict=True)
    ]
    return runs.set_axis(pd.Index(index), axis=0)
