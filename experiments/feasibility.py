"""What a spec cannot tell by itself: whether this code, its streams and its data sets can carry it out."""

import torch

from attnres.errors import UserError, one_line
from experiments.data.base import DATASETS
from experiments.settings import Settings
from experiments.spec import NUMERICS, RunSpec


def check_processes(spec: RunSpec, settings: Settings) -> None:
    """Refuse (``UserError``) processes that cannot have equal shares of a batch, in equal micro-batches."""
    processes, sequences = settings.processes, spec.batch_sequences
    if sequences % processes:
        raise UserError(
            f"processes {processes}: a batch of {sequences} sequences ({spec.train.batch_tokens} tokens of "
            f"{spec.shape.seq_len}) has no equal shares; use a number of processes that divides {sequences}"
        )
    share, micro = sequences // processes, settings.micro_sequences
    if processes > 1 and micro is not None and share % min(micro, share):
        raise UserError(
            f"micro_sequences {micro}: does not divide the {share} sequences of each of {processes} processes"
        )


def check_feasible(spec: RunSpec) -> None:
    """Refuse a spec that could only fail once it runs; nothing is written or fetched.

    Raises:
        UserError: another version's numerics, an unknown data set, a vocabulary it cannot have, or stream
            options that do not fit the shape.
    """
    if spec.numerics != NUMERICS:
        raise UserError(
            f"numerics {spec.numerics}: this code computes numerics {NUMERICS}; make the spec anew, or check "
            "out the code it was made with"
        )
    DATASETS.get(spec.dataset).check_size(spec.shape.vocab_size)
    try:
        with torch.device("meta"):
            spec.stream.build(spec.shape)
    except ValueError as error:
        raise UserError(
            f"stream {spec.stream.variant} at depth {spec.shape.depth}: {one_line(error)}"
        ) from error
