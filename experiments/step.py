"""One optimiser step, as training and the throughput measurement both take it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from attnres.decoder import Decoder
from experiments.spec import RunSpec


def optimizer_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batch_BT: Tensor,
    spec: RunSpec,
    *,
    lr: float,
    micro_sequences: int | None = None,
    backward: Callable[[Tensor], None] = torch.Tensor.backward,
    watch: AbstractContextManager[object] | None = None,
) -> tuple[float, float]:
    """Forward and backward over the micro-batches, clip, step.

    Args:
        model: trained in place.
        optimizer: its groups get ``lr``.
        batch_BT: the global batch (sequence, position + 1), int64.
        spec: the run (clipping).
        lr: learning rate of this step.
        micro_sequences: sequences of one forward pass; None: the whole batch.
        backward: how a loss is propagated (Lightning's strategies have their own way).
        watch: entered before the first forward pass, left after the last backward pass, before clipping.

    Returns:
        The batch's mean loss (nats a token) and its global gradient norm before clipping.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), device=batch_BT.device)
    with watch or nullcontext():
        for micro_BT in torch.split(batch_BT, micro_sequences or len(batch_BT)):
            share = len(micro_BT) / len(batch_BT)
            micro_loss = model.loss(micro_BT[:, :-1], micro_BT[:, 1:]) * share
            backward(micro_loss)
            loss += micro_loss.detach()
    for group in optimizer.param_groups:
        group["lr"] = lr
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.train.grad_clip, foreach=True)
    optimizer.step()
    return loss.item(), grad_norm.item()
