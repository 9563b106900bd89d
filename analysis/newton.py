"""Damped Newton on a Huber (or least-squares) objective, many starts or refits at once.

Every tolerance is relative to the objective, so that its scale does not matter. The damping is shaped by the
reweighted information matrix, in which the collinearity of E and the exponents is already known.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.forms.base import Array
from analysis.objective import Local, Problem, evaluate, reweighted_information

# Rows of a batch worked on together: 128 x 240 points x 5 parameters stay in the second-level cache.
CHUNK = 128
# Iterations before slow rows are put together, and how often that happens.
ROUND, MAX_ROUNDS = 8, 40
# Converged when a full Newton step would move the curve by less than this in ln loss (root mean square).
STEP_TOLERANCE = 1e-12
# Or when it would lower the objective by less than this share: a move below 1e-6 standard errors.
GAIN_TOLERANCE = 1e-14
TINY, ROUNDING = 1e-300, 1e-15
FIRST_DAMPING, SETTLED_DAMPING, NEGLIGIBLE_DAMPING, LARGEST_DAMPING = 0.1, 1e-2, 1e-9, 1e12


@dataclass
class Minima:
    """Where the search ended, one row per start: theta (S, P), the others (S,)."""

    theta: Array
    objective: Array
    converged: np.ndarray
    iterations: np.ndarray

    @classmethod
    def empty(cls, theta_SP: Array) -> "Minima":
        """Starts as they are, nothing searched yet."""
        size = len(theta_SP)
        zeros = np.zeros(size, dtype=int)
        return cls(theta_SP.copy(), np.full(size, np.inf), np.zeros(size, dtype=bool), zeros)

    def take(self, rows: np.ndarray) -> "Minima":
        """The given rows, in that order."""
        return Minima(self.theta[rows], self.objective[rows], self.converged[rows], self.iterations[rows])


def minimise(problem: Problem, starts_SP: Array, weights: Array, gain: float = GAIN_TOLERANCE) -> Minima:
    """Nearest minimum of every start.

    Args:
        starts_SP: internal coordinates. weights: (N,) for all starts, or (S, N) one row each.
        gain: share of the objective whose loss no longer matters.
    """
    lower, upper = problem.form.bounds()
    result = Minima.empty(np.clip(starts_SP, lower, upper))
    weights_SN = np.broadcast_to(weights, (len(starts_SP), problem.z.shape[1]))
    chunks = np.array_split(np.arange(len(starts_SP)), max(1, -(-len(starts_SP) // CHUNK)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        derive = _derivatives(problem, result.theta)
        waiting = [_Search(problem, rows, result.theta[rows], weights_SN[rows], derive) for rows in chunks]
        for rounds in range(1, MAX_ROUNDS + 1):
            for search in waiting:
                search.advance(result, gain, last=rounds == MAX_ROUNDS)
            waiting = _merged([search for search in waiting if len(search.rows)])
            if not waiting:
                break
    return result


Derivatives = Callable[[Array, Array], tuple[Local, Array]]


def _derivatives(problem: Problem, theta_SP: Array) -> Derivatives:
    """How to get `Local` and metric at the starts: row by row, or together when all are the same point.

    Refits start at one theta: the derivatives are then sums of the points' own, one matrix product for all.
    """
    num_points = problem.z.shape[1]
    if len(theta_SP) <= num_points or not (theta_SP == theta_SP[0]).all():
        return lambda theta, weights: (
            evaluate(problem, theta, weights),
            reweighted_information(problem, theta, weights),
        )
    repeated, alone = np.repeat(theta_SP[:1], num_points, axis=0), np.eye(num_points)
    points = evaluate(problem, repeated, alone)
    information = reweighted_information(problem, repeated, alone)

    def together(_: Array, weights_SN: Array) -> tuple[Local, Array]:
        sums = [np.tensordot(weights_SN, part, 1) for part in vars(points).values()]
        return Local(*sums), np.tensordot(weights_SN, information, 1)

    return together


class _Search:
    """Rows under way: theta, local derivatives, and the damping of each."""

    def __init__(
        self, problem: Problem, rows: np.ndarray, theta_SP: Array, weights_SN: Array, derive: Derivatives
    ) -> None:
        self.problem, self.rows, self.theta = problem, rows, theta_SP
        self.weights = np.ascontiguousarray(weights_SN)
        self.local, self.metric = derive(self.theta, self.weights)
        self.total = self.weights @ problem.precision**2
        self.damping = np.full(len(rows), FIRST_DAMPING)
        self.raise_by = np.full(len(rows), 4.0)
        self.iteration = 0

    def advance(self, result: Minima, gain: float, *, last: bool) -> None:
        """Some iterations; rows that end are written to ``result`` and leave."""
        if self.iteration:
            # Renewed once a round only: it shapes damped steps, and costs half an evaluation.
            self.metric = reweighted_information(self.problem, self.theta, self.weights)
        for _ in range(ROUND):
            step, slope, converged = self._propose(gain)
            lost = (self.damping > LARGEST_DAMPING) | ~np.isfinite(self.local.objective)
            going = ~(converged | lost)
            if not going.all():
                self._leave(result, ~going, converged)
                step, slope = step[going], slope[going]
            if not len(self.rows):
                return
            self._try(step, slope)
        if last:
            everything = np.ones(len(self.rows), dtype=bool)
            self._leave(result, everything, ~everything)

    def _propose(self, gain: float) -> tuple[Array, Array, np.ndarray]:
        """A damped Newton step of every row, its slope, and which rows it would no longer move."""
        lower, upper = self.problem.form.bounds()
        local = self.local
        step = _step(local, self.metric, self.theta, self.damping, self.problem.free, lower, upper)
        step = np.clip(self.theta + step, lower, upper) - self.theta
        slope = np.einsum("sp,sp->s", local.gradient, step)
        moved = np.sqrt((np.einsum("spp->sp", self.metric) * step**2).sum(axis=1) / self.total)
        small = (moved < STEP_TOLERANCE) | (np.abs(slope) < gain * local.objective)
        settled = (self.damping <= SETTLED_DAMPING) & np.isfinite(local.hessian).all(axis=(1, 2))
        return step, slope, small & settled

    def _try(self, step_SP: Array, slope_S: Array) -> None:
        """Take the step where it leads downhill; adapt the damping."""
        local = self.local
        trial = self.problem.form.move(self.theta, step_SP)
        there = evaluate(self.problem, trial, self.weights)
        bend = np.matmul(step_SP[:, None], np.matmul(local.hessian, step_SP[..., None]))[:, 0, 0]
        expected = -slope_S - 0.5 * bend
        # Descent that the objective cannot show in double precision counts as made: residuals carry an error
        # of about 1e-15, so the objective one of 1e-15 sum w |psi| <= 1e-15 (2 objective x sum w)^(1/2).
        noise = ROUNDING * (np.sqrt(2 * local.objective * self.total) + ROUNDING * self.total)
        rise = there.objective - local.objective
        unseen = (np.abs(expected) < noise) & (rise < noise)
        accepted = (slope_S <= 0) & ((rise <= 0) | unseen)
        ratio = np.where(unseen, 1.0, -rise / np.maximum(expected, TINY))
        self._adapt_damping(accepted, ratio)
        self.theta = np.where(accepted[:, None], trial, self.theta)
        local.put(accepted, there)
        self.iteration += 1

    def _adapt_damping(self, accepted: np.ndarray, ratio: Array) -> None:
        """Nielsen's rule: smooth in the ratio of actual to predicted descent, so steps do not alternate."""
        lowered = self.damping * np.clip(1 - (2 * ratio - 1) ** 3, 0.1, 2.0)
        raised = np.maximum(self.damping, SETTLED_DAMPING / 10) * self.raise_by
        self.damping = np.where(accepted, lowered, raised)
        self.damping[self.damping < NEGLIGIBLE_DAMPING] = 0.0
        self.raise_by = np.where(accepted, 4.0, 2 * self.raise_by)

    def _leave(self, result: Minima, ended: np.ndarray, converged: np.ndarray) -> None:
        at = self.rows[ended]
        objective = self.local.objective[ended]
        result.theta[at], result.objective[at] = (
            self.theta[ended],
            np.where(np.isnan(objective), np.inf, objective),
        )
        result.converged[at], result.iterations[at] = converged[ended], self.iteration
        self._keep(~ended)

    def join(self, other: "_Search") -> None:
        """Take over the rows of ``other``."""
        for name in ("rows", "theta", "weights", "metric", "total", "damping", "raise_by"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        self.local = self.local.joined(other.local)

    def _keep(self, kept: np.ndarray) -> None:
        """Go on with the rows where ``kept`` is true."""
        self.rows, self.theta, self.weights = self.rows[kept], self.theta[kept], self.weights[kept]
        self.metric = self.metric[kept]
        self.total, self.damping, self.raise_by = self.total[kept], self.damping[kept], self.raise_by[kept]
        self.local = self.local.take(kept)


def _merged(searches: list[_Search]) -> list[_Search]:
    """The slow rows of many chunks in few: a chunk of three rows costs nearly as much as one of sixty."""
    merged: list[_Search] = []
    for search in searches:
        if merged and len(merged[-1].rows) + len(search.rows) <= CHUNK:
            merged[-1].join(search)
        else:
            merged.append(search)
    return merged


def _step(
    local: Local,
    metric_SPP: Array,
    theta_SP: Array,
    damping_S: Array,
    free_P: np.ndarray,
    lower: Array,
    upper: Array,
) -> Array:
    """Solve (H + damping metric) step = -gradient over the coordinates that may move."""
    gradient = local.gradient
    pinned = ((theta_SP <= lower) & (gradient > 0)) | ((theta_SP >= upper) & (gradient < 0))
    pinned |= ~free_P
    scale = np.einsum("spp->sp", metric_SPP)
    root = np.sqrt(np.where(scale > 0, scale, 1.0))
    matrix = local.hessian + damping_S[:, None, None] * metric_SPP
    matrix /= root[:, :, None] * root[:, None, :]
    diagonal = np.arange(matrix.shape[1])
    # 1e-15 keeps an exactly singular matrix solvable; it is far below what the data can resolve.
    matrix[:, diagonal, diagonal] += 1e-15
    matrix = np.where(pinned[:, :, None] | pinned[:, None, :], 0.0, matrix)
    matrix[:, diagonal, diagonal] += pinned
    right = np.where(pinned, 0.0, -gradient / root)
    usable = np.isfinite(matrix).all(axis=(1, 2)) & np.isfinite(right).all(axis=1)
    matrix[~usable] = np.eye(matrix.shape[1])
    right[~usable] = 0.0
    try:
        solution = np.linalg.solve(matrix, right[..., None])
    except np.linalg.LinAlgError:  # one row of the batch is exactly singular: shortest steps for all
        solution = np.linalg.pinv(matrix, hermitian=True) @ right[..., None]
    step: Array = solution[..., 0] / root
    return step
