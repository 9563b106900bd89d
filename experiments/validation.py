"""Validation loss on fixed tokens: the same windows for every run of a data set, always all of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnres.decoder import Decoder
from experiments.group import Group

VALIDATION_TOKENS = 2**18
"""Validation tokens of every run (fewer if the split is smaller). With 262,144 bytes of text the
standard error of a byte model's loss is near 0.005 nats; pairs share the windows, so that their
difference is known far better. A change moves losses: raise ``experiments.spec.NUMERICS`` with it."""


@dataclass(frozen=True)
class ValidationLoss:
    """Mean loss in nats a token and its standard error over windows."""

    mean: float
    standard_error: float
    tokens: int


@torch.no_grad()
def validate(model: Decoder, windows_NT: Tensor, group: Group, *, sequences: int) -> ValidationLoss:
    """Mean loss of ``model`` on ``windows_NT`` (window, position + 1).

    The weights of windows are equal (all have the same length), so the mean over tokens is the mean
    over windows and its standard error is that of independent windows.

    Args:
        model: on the device it trains on; its mode is restored.
        windows_NT: int64 token ids.
        group: the processes that share the windows; every one calls, and gets the result.
        sequences: windows of one forward pass.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    loss_N = torch.zeros(len(windows_NT), dtype=torch.float64)
    for turn in range(0, len(windows_NT), group.world * sequences):
        start = turn + group.rank * sequences
        own_NT = windows_NT[start : start + sequences]
        # a process with none left in the last turn takes part all the same: a part of the model may lie there
        chunk_NT = (own_NT if len(own_NT) else windows_NT[:1]).to(device)
        per_token = model.token_losses(chunk_NT[:, :-1], chunk_NT[:, 1:])
        loss_N[start : start + len(own_NT)] = per_token.double().mean(dim=1)[: len(own_NT)].cpu()
    model.train(training)
    loss_N = group.total(loss_N)
    spread = loss_N.std().item() if len(loss_N) > 1 else float("inf")
    return ValidationLoss(
        mean=loss_N.mean().item(),
        standard_error=spread / len(loss_N) ** 0.5,
        tokens=windows_NT.shape[0] * (windows_NT.shape[1] - 1),
    )


def evaluation_steps(steps: int, evaluations: int) -> set[int]:
    """Steps after which a run of ``steps`` validates: evenly spaced, the last one at the end."""
    return {round(steps * k / evaluations) for k in range(1, evaluations + 1)} - {0}
