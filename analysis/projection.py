"""Non-negative least squares for a whole batch of small problems at once.

The coefficients of a scaling law are linear given its exponents, so the search is over the exponents alone
(variable projection). With at most a handful of coefficients the exact answer comes from trying every subset.
"""

from itertools import combinations

import numpy as np

from analysis.forms.base import Array

# A pivot below this share of the column's norm means the columns are the same curve (an exponent near zero).
SINGULAR = 1e-12


def non_negative_coefficients(basis_SMN: Array, target_SN: Array, weights_N: Array) -> Array:
    """argmin_c sum_n w_n (target_sn - sum_m c_m basis_smn)^2 subject to c >= 0, for every s: (S, M).

    Exact: among all subsets of columns whose unconstrained solution is non-negative, the one with the lowest
    residual. Columns are scaled to unit norm first. Zero where a column overflows.
    """
    num_starts, num_columns, _ = basis_SMN.shape
    weighted = basis_SMN * weights_N
    norms_SM = np.sqrt(np.einsum("smn,smn->sm", weighted, basis_SMN))
    gram_SMM = (weighted @ basis_SMN.transpose(0, 2, 1)) / (norms_SM[:, :, None] * norms_SM[:, None, :])
    moment_SM = (weighted @ target_SN[..., None])[..., 0] / norms_SM
    finite = np.isfinite(gram_SMM).all(axis=(1, 2)) & np.isfinite(moment_SM).all(axis=1)
    gram_SMM[~finite], moment_SM[~finite] = 0.0, 0.0
    best_SM = np.zeros((num_starts, num_columns))
    best_gain_S = np.zeros(num_starts)
    for size in range(1, num_columns + 1):
        for columns in combinations(range(num_columns), size):
            index = np.array(columns)
            gram = gram_SMM[:, index[:, None], index[None, :]]
            solvable = finite & (np.abs(np.linalg.det(gram)) > SINGULAR)
            gram = np.where(solvable[:, None, None], gram, np.eye(size))
            moment = moment_SM[:, index]
            solution = np.linalg.solve(gram, moment[..., None])[..., 0]
            gain = np.einsum("sk,sk->s", solution, moment)
            better = solvable & (solution >= 0).all(axis=1) & (gain > best_gain_S)
            best_gain_S = np.where(better, gain, best_gain_S)
            best_SM[better] = 0.0
            best_SM[np.ix_(better, index)] = solution[better]
    coefficients_SM: Array = best_SM / norms_SM
    return np.where(finite[:, None], coefficients_SM, 0.0)
