"""What a plan will be able to tell: the interval it is expected to give, in lines for people."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.power import expected, seeds_needed
from analysis.simulation import Design
from attnres.errors import UserError

ASSUMED = Design(
    num_sizes=5,
    num_seeds=1,
    seed_sd=0.004,
    correlation=0.3,
    lack_of_fit=0.004,
    compute_range=30.0,
    exponent=0.057,
    irreducible=0.0,
    loss=1.8,
)
"""Taken where no pilot says better: seeds move small models by 0.002 to 0.01 nats, and the loss falls by
about 0.1 nats for a unit of ln C."""

MULTIPLIERS_SHOWN = (1.05, 1.1, 1.25)


def design_of_plan(rungs: Mapping[tuple[str, float], int], pilot: Design = ASSUMED) -> Design:
    """The design of planned rungs: (size, budget) -> seeds; noise and law as in ``pilot``.

    Raises:
        UserError: no rungs.
    """
    if not rungs:
        raise UserError("the plan has no cells of a ladder")
    ordered = sorted(rungs, key=lambda rung: rung[1])
    budgets = [budget for _, budget in ordered]
    return replace(
        pilot,
        num_sizes=len({size for size, _ in ordered}),
        num_seeds=tuple(rungs[rung] for rung in ordered)
        if len({s for s, _ in ordered}) == len(ordered)
        else 1,
        compute_range=max(budgets) / min(budgets),
    )


def outlook_lines(design: Design, multipliers: Sequence[float] = MULTIPLIERS_SHOWN) -> list[str]:
    """Expected interval and power for each of ``multipliers``, against m = 1; a refusal is a line too."""
    seeds = design.num_seeds if isinstance(design.num_seeds, int) else "/".join(map(str, design.num_seeds))
    lines = [
        f"{design.num_sizes} sizes over {design.compute_range:.3g}x, seeds {seeds}; assumed: seed sd "
        f"{design.seed_sd:.2g} nats, correlation {design.correlation:.2g}, lack of fit "
        f"{design.lack_of_fit:.2g}, slope {design.slope:.2g} nats a unit of ln C"
    ]
    for m in multipliers:
        try:
            found = expected(design, m)
        except UserError as error:
            return [*lines, f"no headline from this plan: {error}"]
        lines.append(
            f"a true {m:.3g} would read {m:.3g} [{found.lo:.3f}, {found.hi:.3f}], "
            f"told from 1 with power {found.power:.0%}"
        )
    return lines


def outlook(cells: Sequence[Mapping[str, Any]], pilot: Design = ASSUMED) -> list[str]:
    """`outlook_lines` of a plan's cells (as in plan.json), counting one arm's ladder.

    The branches of a trunk share its noise: they count as one run, at the geometric mean of their budgets.
    """
    ladder = [cell for cell in cells if cell["role"] == "ladder"]
    arm = ladder[0]["variant"] if ladder else ""
    own: dict[str, list[Mapping[str, Any]]] = {}
    for cell in ladder:
        if cell["variant"] == arm:
            own.setdefault(cell.get("parent_id") or cell["spec_id"], []).append(cell)
    rungs: dict[tuple[str, float], int] = {}
    for runs in own.values():
        budget = math.exp(sum(math.log(run["budget"]) for run in runs) / len(runs))
        key = (str(runs[0]["size"]), float(f"{budget:.9g}"))
        rungs[key] = rungs.get(key, 0) + 1
    return outlook_lines(design_of_plan(rungs, pilot))


def resolve_lines(design: Design, m1: float, m0: float, power: float) -> list[str]:
    """Seeds a size, and the range, that tell ``m1`` from ``m0`` with ``power``."""
    one = replace(design, num_seeds=1)
    lines = []
    for factor in (1.0, 3.0, 10.0):
        wider = replace(one, compute_range=math.exp(math.log(design.compute_range) + math.log(factor)))
        needed = seeds_needed(wider, m1, m0, power=power)
        answer = f"{needed} seeds a size" if needed else "no number of seeds"
        lines.append(f"range {wider.compute_range:.3g}x: {answer} for power {power:.0%}")
    return lines
