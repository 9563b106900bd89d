"""What a multiplier estimator takes, gives and may refuse; one estimator a file, registered by name.

compute multiplier m(C) = C_baseline(loss of the variant at C) / C: above 1 the variant saves compute.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.clusters import Groups, linked, num_groups
from analysis.losses import MAX_LOSS, MIN_LOSS
from attnres.registry import Registry

Floats = NDArray[np.float64]

LEVEL = 0.95
"""Nominal coverage of the intervals."""

MIN_SIZES = 4
"""Distinct sizes below which no estimator answers; seeds of one size are not further sizes."""


class RefusalReason(StrEnum):
    """Why there is no number."""

    NO_PAIRS = "no finished pairs"
    TOO_FEW_SIZES = "too few sizes"
    TOO_SHORT = "runs too short"
    BAD_LOSS = "loss is no loss"
    NO_OVERLAP = "loss ranges do not overlap"
    UNEQUAL_PAIRS = "pairs differ in more than the stream"
    NOT_IDENTIFIABLE = "not identifiable"
    NO_THROUGHPUT = "no throughput measured"
    NO_VARIANCE = "zero residual variance"
    NO_COMPUTE = "compute unknown on this axis"
    NO_RATES = "learning rates not swept"


class RefusalError(Exception):
    """An estimator has no answer: a finding, not a crash. ``str`` starts with the reason's words."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class PairedArms:
    """Losses of two arms at the same sizes and tokens; arrays have one entry a rung (size, budget).

    Seeds of a rung are averaged; the single pairs stay in ``pair_*`` with the index of their rung.
    """

    variant: str
    baseline: str
    compute_axis: str
    sizes: tuple[str, ...]
    budget: Floats
    params_baseline: Floats
    params_variant: Floats
    tokens: Floats
    compute_baseline: Floats
    """On ``compute_axis``, FLOPs."""
    compute_variant: Floats
    loss_baseline: Floats
    loss_variant: Floats
    num_seeds: Floats
    pair_rung: NDArray[np.int64]
    pair_seed: NDArray[np.int64]
    pair_loss_baseline: Floats
    pair_loss_variant: Floats
    pair_spec_ids: tuple[tuple[str, str], ...]
    """Baseline's and variant's run of every pair."""
    notes: tuple[str, ...] = ()
    control: bool = False
    """The variant is planned to compute what the baseline computes and cost more (role overhead_only)."""
    pair_trunks: tuple[tuple[str, str], ...] = ()
    """Trunks that the baseline's and the variant's run of every pair share steps with; "" or empty: none."""

    @cached_property
    def clusters(self) -> Groups:
        """Cluster of every rung (`analysis.clusters`): rungs with a trunk in common are one."""
        trunks: list[list[str]] = [[] for _ in self.sizes]
        for rung, names in zip(self.pair_rung, self.pair_trunks, strict=False):
            trunks[rung] += names
        return linked(trunks)

    @property
    def num_clusters(self) -> int:
        """Independent units of the study: clusters of rungs."""
        return num_groups(self.clusters)

    @property
    def clustered(self) -> bool:
        """Whether any two rungs share a trunk."""
        return self.num_clusters < len(self.sizes)

    @property
    def spec_ids(self) -> tuple[str, ...]:
        """All runs."""
        return tuple(dict.fromkeys(spec_id for pair in self.pair_spec_ids for spec_id in pair))

    @property
    def num_sizes(self) -> int:
        """Distinct sizes."""
        return len(set(self.sizes))

    @property
    def num_pairs(self) -> int:
        """Run pairs."""
        return len(self.pair_rung)

    @property
    def same_losses(self) -> bool:
        """Whether no pair differs in its loss, to the last bit."""
        return np.array_equal(self.pair_loss_baseline, self.pair_loss_variant) and np.array_equal(
            self.loss_baseline, self.loss_variant
        )

    @property
    def identical(self) -> bool:
        """Whether the arms are one: the same losses and the same compute in every pair."""
        return self.same_losses and np.array_equal(self.compute_baseline, self.compute_variant)

    def swapped(self) -> "PairedArms":
        """The same pairs with the roles of the arms exchanged."""
        return PairedArms(
            variant=self.baseline,
            baseline=self.variant,
            compute_axis=self.compute_axis,
            sizes=self.sizes,
            budget=self.budget,
            params_baseline=self.params_variant,
            params_variant=self.params_baseline,
            tokens=self.tokens,
            compute_baseline=self.compute_variant,
            compute_variant=self.compute_baseline,
            loss_baseline=self.loss_variant,
            loss_variant=self.loss_baseline,
            num_seeds=self.num_seeds,
            pair_rung=self.pair_rung,
            pair_seed=self.pair_seed,
            pair_loss_baseline=self.pair_loss_variant,
            pair_loss_variant=self.pair_loss_baseline,
            pair_spec_ids=tuple((b, a) for a, b in self.pair_spec_ids),
            notes=self.notes,
            control=self.control,
            pair_trunks=tuple((b, a) for a, b in self.pair_trunks),
        )


@dataclass(frozen=True)
class Estimate:
    """ln m with its interval; the multiplier is the exponential.

    Raises:
        RefusalError: the interval is not finite, or leaves a factor of a million.
    """

    ln_m: float
    lo: float
    """Lower end, ln m."""
    hi: float
    sd: float
    """Standard error of ln m (half the interval over the quantile where it is not symmetric)."""
    dof: float | None
    level: float
    form: str
    irreducible: str
    """Rule for E and its value."""
    at: float | None = None
    """FLOPs the multiplier holds at; None if it is constant."""
    extrapolated: bool = False
    status: str = "converged"
    facts: dict[str, float] = field(default_factory=dict)
    """Numbers behind the estimate: slope, E, parts of the variance."""

    def __post_init__(self) -> None:
        if not -MAX_LN < self.lo <= self.ln_m <= self.hi < MAX_LN:
            raise RefusalError(
                RefusalReason.NOT_IDENTIFIABLE,
                f"ln m could be anything from {self.lo:.4g} to {self.hi:.4g}, beyond a factor of a million",
            )

    @property
    def compute_multiplier(self) -> float:
        """exp(ln m)."""
        return math.exp(self.ln_m)

    @property
    def without_noise(self) -> bool:
        """Whether nothing was estimated: see `analysis.multipliers.without_noise`."""
        return self.status in WITHOUT_NOISE


WITHOUT_NOISE = ("identical", "exact")
"""Status of arms whose losses are equal: one arm twice; or a control, whose multiplier is its cost."""


MAX_LN = math.log(1e6)
"""|ln m| beyond which an interval says that the slope of the loss is unknown, and nothing about m."""

Estimator = Callable[[PairedArms, float], Estimate]
"""(arms, level) -> Estimate; raises `RefusalError`."""

MULTIPLIERS: Registry[Estimator] = Registry("multiplier estimator", "analysis.multipliers")


def student_interval(ln_m: float, sd: float, dof: float, level: float) -> tuple[float, float]:
    """ln m -+ t(dof) sd, ends of the two-sided interval."""
    half = float(stats.t.ppf(0.5 + level / 2, dof)) * sd
    return ln_m - half, ln_m + half


def check_arms(arms: PairedArms, num_sizes: int = MIN_SIZES) -> None:
    """Refuse pairs from which no multiplier can be had.

    Raises:
        RefusalError: fewer than ``num_sizes`` distinct sizes, a loss that cannot be one, one compute only,
            or loss ranges that do not overlap.
    """
    if arms.num_pairs == 0:
        raise RefusalError(RefusalReason.NO_PAIRS, f"none of {arms.variant} with {arms.baseline}")
    if arms.num_sizes < num_sizes:
        raise RefusalError(
            RefusalReason.TOO_FEW_SIZES,
            f"{arms.num_sizes} with finished pairs ({', '.join(dict.fromkeys(arms.sizes))}), "
            f"{num_sizes} needed",
        )
    for size, *losses in zip(arms.sizes, arms.loss_baseline, arms.loss_variant, strict=True):
        for loss in losses:
            if not MIN_LOSS < loss < MAX_LOSS:
                raise RefusalError(
                    RefusalReason.BAD_LOSS, f"{loss:.4g} at {size}; {MIN_LOSS:g} to {MAX_LOSS:g} nats a token"
                )
    spread = float(np.ptp(np.log(arms.compute_baseline)))
    if spread < MIN_LN_RANGE:
        raise RefusalError(
            RefusalReason.NOT_IDENTIFIABLE,
            f"all at one compute (range {math.exp(spread):.3g}x; {math.exp(MIN_LN_RANGE):.3g}x needed)",
        )
    low = max(arms.loss_baseline.min(), arms.loss_variant.min())
    high = min(arms.loss_baseline.max(), arms.loss_variant.max())
    if low > high:
        raise RefusalError(
            RefusalReason.NO_OVERLAP,
            f"{_range(arms.loss_variant)} ({arms.variant}), {_range(arms.loss_baseline)} ({arms.baseline})",
        )


MIN_LN_RANGE = math.log(1.5)
"""Least range of compute, in ln: below it the slope of the loss is not measured but guessed."""


def _range(values: Floats) -> str:
    return f"{values.min():.4g} to {values.max():.4g}"
