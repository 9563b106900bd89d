"""A finished study as the pilot of a further one: its noise, slope and law."""

import math

from analysis.clusters import linked, num_groups
from analysis.comparison import HEADLINE, MATCHED, Comparison, Question
from analysis.compute_axes import EXACT
from analysis.simulation import Design
from analysis.study import Study
from attnres.errors import UserError


def design_of_pilot(study: Study, variant: str) -> Design:
    """The design of ``study`` with what its pairs of ``variant`` measured.

    The seed sd is an effective one: the scatter of the sizes' values of ln m, turned into nats by the slope,
    as if the arms were uncorrelated. Two or three seeds at a few sizes say too little about the
    correlation for a plan to lean on it.

    Raises:
        UserError: the study has no headline for the arm.
    """
    answer = Comparison(study).answer(Question(variant, HEADLINE, EXACT, MATCHED))
    if answer.estimate is None or answer.arms is None or answer.estimate.without_noise:
        raise UserError(f"{study.folder} is no pilot for {variant}: {answer.row()['status']}")
    facts, arms = answer.estimate.facts, answer.arms
    loss = float((arms.loss_baseline * arms.num_seeds).sum() / arms.num_seeds.sum())
    slope = facts["exponent"] * (loss - facts["irreducible"])
    # Independent pairs: those of one trunk are one.
    pairs = num_groups(linked(arms.pair_trunks)) if arms.clustered else arms.num_pairs
    difference_sd = facts["pair_sd"] * slope * math.sqrt(pairs)
    one_rung_a_size = len(arms.sizes) == arms.num_sizes
    return Design(
        num_sizes=arms.num_sizes,
        num_seeds=tuple(int(n) for n in arms.num_seeds) if one_rung_a_size else 1,
        seed_sd=difference_sd / math.sqrt(2),
        lack_of_fit=facts["residual_sd"],
        compute_range=float(arms.compute_baseline.max() / arms.compute_baseline.min()),
        exponent=facts["exponent"],
        irreducible=facts["irreducible"],
        loss=loss,
    )
