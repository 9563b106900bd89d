"""Ways to count the compute of a run; each gives the multiplier on its own axis.

exact: all training FLOPs. 6nd: 6 N D with the parameters of the sublayers and the stream.
6nd_total: 6 N D with all parameters. no_head: exact without the head. tokens: exact without the
stream, the same for both arms, so the multiplier of equal tokens. wall: tokens, times the measured
ratio of throughputs (`analysis.comparison` applies it).
"""

from collections.abc import Callable

import pandas as pd

from attnres.errors import UserError

WALL = "wall"
TOKENS = "tokens"
EXACT = "exact"

_AXES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    EXACT: lambda runs: runs["compute"],
    "6nd": lambda runs: 6.0 * (runs["params_decoder"] + runs["params_stream"]) * runs["tokens"],
    "6nd_total": lambda runs: 6.0 * total_params(runs) * runs["tokens"],
    "no_head": lambda runs: (
        (runs["flops_per_token_matmul"] + runs["flops_per_token_attention"] + runs["flops_per_token_stream"])
        * runs["tokens"]
    ),
    TOKENS: lambda runs: (
        (runs["flops_per_token_matmul"] + runs["flops_per_token_attention"] + runs["flops_per_token_head"])
        * runs["tokens"]
    ),
}

COMPUTE_AXES = (*_AXES, WALL)


def compute_on(runs: pd.DataFrame, axis: str) -> pd.Series:
    """Compute of every row of ``runs`` on ``axis`` (``wall`` counts as ``tokens``), FLOPs.

    Raises:
        UserError: no such axis.
    """
    if axis not in COMPUTE_AXES:
        raise UserError(f"unknown compute axis '{axis}': known are {', '.join(COMPUTE_AXES)}")
    return _AXES[TOKENS if axis == WALL else axis](runs).astype("Float64").astype("float64")


def total_params(runs: pd.DataFrame) -> pd.Series:
    """All unique parameters of every row."""
    return runs["params_embedding"] + runs["params_decoder"] + runs["params_stream"] + runs["params_head"]
