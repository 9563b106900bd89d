"""Speed of the fits against the peers' method, in one run on one thread.

``rows()`` gives {name, value, lo, hi, bar, met}: seconds are medians of turns with their quartiles; ratios
compare with 4,500 L-BFGS-B starts (the published procedure), timed on a sample of them.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from analysis.bootstrap import fit_with_bootstrap
from analysis.forms.base import Array, form_named
from analysis.simulation import Design, coverage
from analysis.solve import fit
from benchmarks.timing import Ratio, interleave, number, row

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TURNS = 7
DELTA = 1e-3
PUBLISHED_STARTS, ANALYTIC_SAMPLE, NUMERIC_SAMPLE, REFIT_SAMPLE = 4500, 90, 24, 60
BOOTSTRAPS = 4000
# The first row of the coverage table: five sizes over a range of six, one seed.
STUDY = Design(num_sizes=5, num_seeds=1, seed_sd=0.002, compute_range=6.0)

CHINCHILLA = form_named("chinchilla")
Points = tuple[dict[str, Array], Array]


def rows() -> list[dict[str, Any]]:
    """All rows; about half a minute, most of it in the reference."""
    points, subsets = chinchilla_points(), gemstone_points()
    times = interleave(
        {
            "fit": lambda: fit(CHINCHILLA, *points, huber_delta=DELTA),
            "bootstrap": lambda: fit_with_bootstrap(
                CHINCHILLA, *points, huber_delta=DELTA, n=BOOTSTRAPS, seed=0
            ),
            "six": lambda: [
                fit(CHINCHILLA, *subset, huber_delta=delta) for subset in subsets for delta in (1e-3, 1e-4)
            ],
            "coverage": lambda: coverage(STUDY, 1.25, 500, seed=0),
        },
        turns=TURNS,
    )
    analytic, share, best = reference(points, ANALYTIC_SAMPLE, analytic_gradient=True)
    numeric, _, _ = reference(points, NUMERIC_SAMPLE, analytic_gradient=False)
    refits = reference_bootstraps(points, REFIT_SAMPLE)
    ours = fit(CHINCHILLA, *points, huber_delta=DELTA)
    typical = statistics.median(times["fit"])
    return [
        seconds(f"one Chinchilla fit of {len(points[1])} points", times["fit"], 0.1),
        seconds(f"the same with {BOOTSTRAPS} bootstraps", times["bootstrap"], 1.0),
        seconds("six Gemstones fits", times["six"], 1.0),
        seconds("500 coverage replications", times["coverage"], 20.0),
        number("4500 L-BFGS-B starts, analytic gradient (reference), s", analytic),
        number("4500 L-BFGS-B starts, numeric gradient (reference), s", numeric),
        number(f"{BOOTSTRAPS} bootstraps, BFGS from the optimum (reference), s", refits),
        number(
            "reference over ours, bootstraps",
            refits / statistics.median(times["bootstrap"]),
            4.0,
            at_least=True,
        ),
        number("share of those starts within 1e-4 of the best", share),
        number("reference over ours, analytic gradient", analytic / typical, 100.0, at_least=True),
        number("our objective over the reference's best", float(ours.objective or np.inf) / best, 1 + 1e-6),
    ]


def seconds(name: str, times: list[float], bar: float) -> dict[str, Any]:
    """A row of repeated timings."""
    lo, median, hi = statistics.quantiles(times, n=4)
    return row(f"{name}, s", Ratio(median, lo, hi, median, 1.0), bar)


def chinchilla_points() -> Points:
    """The 240 points of Besiroglu et al. where the file is present, else as many made-up ones."""
    path = DATA / "chinchilla_svg_besiroglu2024.csv"
    if not path.is_file():
        return made_up(240, seed=0)
    table = pd.read_csv(path).sort_values("loss").iloc[:-5]
    params = table["Model Size"].to_numpy(float)
    tokens = table["Training FLOP"].to_numpy(float) / (6 * params)
    return {"params": params, "tokens": tokens}, table["loss"].to_numpy(float)


def gemstone_points() -> list[Points]:
    """Three subsets of the Gemstones table, or made-up ones of their sizes."""
    path = DATA / "gemstones_fitting.csv"
    if not path.is_file():
        return [made_up(size, seed=size) for size in (199, 220, 28)]
    subsets = []
    for _, group in pd.read_csv(path).groupby("subset"):
        x = {
            "params": group["params_active_precise"].to_numpy(float),
            "tokens": group["tokens"].to_numpy(float),
        }
        subsets.append((x, group["final_loss"].to_numpy(float)))
    return subsets


def made_up(points: int, seed: int) -> Points:
    """Points of the published law with 1 % noise."""
    rng = np.random.default_rng(seed)
    x = {"params": np.exp(rng.uniform(17, 23, points)), "tokens": np.exp(rng.uniform(20, 26, points))}
    loss = CHINCHILLA.predict(CHINCHILLA.planted[0], x)
    return x, loss * np.exp(rng.normal(0, 0.01, points))


def huber_objective(points: Points) -> Callable[[Array], tuple[float, Array]]:
    """Published objective and its gradient by (ln A, ln B, ln E, alpha, beta): sum of Huber of ln loss."""
    x, loss = points
    ln_n, ln_d, ln_l = np.log(x["params"]), np.log(x["tokens"]), np.log(loss)

    def objective(p: Array) -> tuple[float, Array]:
        logs = np.stack([p[0] - p[3] * ln_n, p[1] - p[4] * ln_d, np.full_like(ln_n, p[2])])
        highest = logs.max(axis=0)
        shares = np.exp(logs - highest)
        total = shares.sum(axis=0)
        r = ln_l - highest - np.log(total)
        psi = np.clip(r, -DELTA, DELTA)
        pull = -psi * shares / total
        gradient = np.array([*pull.sum(axis=1), -pull[0] @ ln_n, -pull[1] @ ln_d])
        return float((psi * (r - psi / 2)).sum()), gradient

    return objective


def reference_bootstraps(points: Points, sample: int) -> float:
    """Seconds for `BOOTSTRAPS` refits of resampled points by BFGS from the optimum, from a sample of them."""
    x, loss = points
    best = fit(CHINCHILLA, x, loss, huber_delta=DELTA).parameters
    start = np.array([*np.log([best["A"], best["B"], best["E"]]), best["alpha"], best["beta"]])
    rng = np.random.default_rng(0)
    begin = time.perf_counter()
    for _ in range(sample):
        drawn = rng.integers(0, len(loss), len(loss))
        own = ({name: values[drawn] for name, values in x.items()}, loss[drawn])
        minimize(huber_objective(own), start, jac=True, method="BFGS")
    return (time.perf_counter() - begin) / sample * BOOTSTRAPS


def reference(points: Points, sample: int, *, analytic_gradient: bool) -> tuple[float, float, float]:
    """Seconds for 4,500 L-BFGS-B starts, the share that is good, the best objective, from a sample.

    The published procedure: a grid over (ln A, ln B, ln E, alpha, beta), Huber 1e-3 on ln loss; here with
    the sum as objective and tight tolerances, since with the mean most starts would not move at all.
    """
    objective = huber_objective(points)
    target = objective if analytic_gradient else lambda p: objective(p)[0]
    rng = np.random.default_rng(0)
    wide, offsets, exponents = np.arange(0, 30, 5.0), np.arange(-1, 1.5, 0.5), np.arange(0, 2.5, 0.5)
    starts = [
        np.array([*rng.choice(wide, 2), rng.choice(offsets), *rng.choice(exponents, 2)])
        for _ in range(sample)
    ]
    options = {"ftol": 1e-14, "gtol": 1e-10, "maxiter": 5000, "maxfun": 100_000}
    begin = time.perf_counter()
    found = np.array(
        [
            minimize(target, start, jac=analytic_gradient, method="L-BFGS-B", options=options).fun
            for start in starts
        ]
    )
    elapsed = time.perf_counter() - begin
    share = float((found <= found.min() * (1 + 1e-4)).mean())
    return elapsed / sample * PUBLISHED_STARTS, share, float(found.min())


if __name__ == "__main__":
    for line in rows():
        print(line)
