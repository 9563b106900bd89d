"""Which points stand or fall together: runs that share steps (branches of one trunk) share their noise.

The unit of every interval is the cluster: all rungs that are linked by a trunk. A rung (size, budget) whose
runs have no trunk is a cluster of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]


def linked(trunks: Sequence[Sequence[str]]) -> Groups:
    """Cluster of every item, numbered by first appearance: items are linked where they share a trunk.

    Args:
        trunks: of every item, the trunks behind it; "" is none and links nothing.
    """
    group_of = list(range(len(trunks)))

    def root(item: int) -> int:
        while group_of[item] != item:
            item = group_of[item]
        return item

    first: dict[str, int] = {}
    for item, names in enumerate(trunks):
        for name in filter(None, names):
            one, other = root(item), root(first.setdefault(name, item))
            group_of[max(one, other)] = min(one, other)
    roots = [root(item) for item in range(len(trunks))]
    number = {found: k for k, found in enumerate(dict.fromkeys(roots))}
    return np.array([number[found] for found in roots], dtype=np.int64)


def num_groups(groups: Groups) -> int:
    """Clusters."""
    return int(groups.max()) + 1 if len(groups) else 0


def collapse(groups: Groups, weight_SK: Floats, values_SK: Floats) -> tuple[Floats, Floats]:
    """Weights and weighted means of the clusters, S x G; what was given where every rung stands alone."""
    if num_groups(groups) == len(groups):
        return weight_SK, values_SK
    member_KG = np.eye(num_groups(groups))[groups]
    weight_SG: Floats = weight_SK @ member_KG
    means_SG: Floats = ((weight_SK * values_SK) @ member_KG) / weight_SG
    return weight_SG, means_SG


@dataclass(frozen=True)
class ClusterCovariance:
    """Covariance of weighted least squares for S studies, whatever the correlation within clusters."""

    covariance: Floats
    """S x P x P."""
    _pulls: Floats
    """S x K x G x P: how an error at a point moves the score of a cluster, times the bread."""
    _groups: Groups

    def dof(self, contrast_SP: Floats) -> Floats:
        """Satterthwaite's degrees of freedom of the variance of c'theta.

        (tr M)^2 / tr M^2 with M_gh = p_g' Omega p_h, p_g how errors move cluster g's part of c'theta, and
        Omega a working covariance: as much variance common to a cluster as its points have of their own.
        Fewer than the clusters wherever few of them carry the contrast.
        """
        pull_SKG = np.einsum("skgp,sp->skg", self._pulls, contrast_SP)
        member_KG = np.eye(num_groups(self._groups))[self._groups]
        common_SGH = np.einsum("kh,skg->shg", member_KG, pull_SKG)
        moments_SGG = np.einsum("skg,skh->sgh", pull_SKG, pull_SKG)
        moments_SGG += np.einsum("slg,slh->sgh", common_SGH, common_SGH)
        total_S = np.einsum("sgg->s", moments_SGG)
        with np.errstate(invalid="ignore", divide="ignore"):
            dof: Floats = total_S**2 / (moments_SGG**2).sum((1, 2))
        return dof


def cluster_covariance(
    groups: Groups, jacobian_SKP: Floats, weight_SK: Floats, residual_SK: Floats
) -> ClusterCovariance:
    """B [sum_g s_g s_g'] B with B = (J'WJ)^-1, s_g = J_g' W_g^1/2 (I - H_gg)^-1/2 W_g^1/2 r_g.

    H is the hat matrix of the weighted problem (Bell and McCaffrey 2002, "CR2"): unbiased for independent
    residuals, where the uncorrected form is too small at few clusters.
    """
    root_SK = np.sqrt(weight_SK)
    scaled_SKP = jacobian_SKP * root_SK[..., None]
    bread_SPP = np.linalg.pinv(np.einsum("skp,skq->spq", scaled_SKP, scaled_SKP), hermitian=True)
    half_SKP = scaled_SKP @ bread_SPP
    annihilator_SKK = np.eye(len(groups)) - half_SKP @ scaled_SKP.transpose(0, 2, 1)
    pulls = []
    for group in range(num_groups(groups)):
        own = groups == group
        values, vectors = np.linalg.eigh(annihilator_SKK[:, own][:, :, own])
        # A direction that the cluster alone determines has no residual: it adds nothing.
        scale = np.where(values > LEAST_FREE, values, np.inf) ** -0.5
        spread_SNN = (vectors * scale[:, None, :]) @ vectors.transpose(0, 2, 1)
        pulls.append(annihilator_SKK[:, :, own] @ spread_SNN @ half_SKP[:, own])
    pulls_SKGP = np.stack(pulls, axis=2)
    part_SGP = np.einsum("sk,skgp->sgp", root_SK * residual_SK, pulls_SKGP)
    return ClusterCovariance(np.einsum("sgp,sgq->spq", part_SGP, part_SGP), pulls_SKGP, groups)


LEAST_FREE = 1e-9
"""Eigenvalue of I - H below which a direction counts as determined by its cluster alone."""
