"""One optimiser step, as training and the throughput measurement both take it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from attnres.decoder import Decoder
from attnres.sharded import whole
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
    accumulating: Callable[[], AbstractContextManager[object]] = nullcontext,
    watch: AbstractContextManager[object] | None = None,
) -> tuple[float, float]:
    """Forward and backward over the micro-batches, clip, step.

    Args:
        model: trained in place.
        optimizer: its groups get ``lr``.
        batch_BT: the batch (sequence, position + 1), int64; of several processes, each its equal share.
        spec: the run (clipping).
        lr: learning rate of this step.
        micro_sequences: sequences of one forward pass; None: all of them.
        backward: how a loss is propagated (Lightning's strategies have their own way).
        accumulating: entered around every micro-batch but the last (`experiments.parallel`).
        watch: entered before the first forward pass, left after the last backward pass, before clipping.

    Returns:
        The mean loss of ``batch_BT`` (nats a token), and the global gradient norm before clipping: of several
        processes it is one number, since their gradients are averaged with the last micro-batch.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), device=batch_BT.device)
    with watch or nullcontext():
        *first, last = torch.split(batch_BT, micro_sequences or len(batch_BT))
        for micro_BT in first:
            with accumulating():
                loss += _propagate(model, micro_BT, len(micro_BT) / len(batch_BT), backward)
        loss += _propagate(model, last, len(last) / len(batch_BT), backward)
    for group in optimizer.param_groups:
        group["lr"] = lr
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.train.grad_clip, foreach=True)
    optimizer.step()
    return loss.item(), whole(grad_norm).item()


def _propagate(model: Decoder, micro_BT: Tensor, share: float, backward: Callable[[Tensor], None]) -> Tensor:
    """The micro-batch's part of the batch's mean loss, its gradients added."""
    loss = model.loss(micro_BT[:, :-1], micro_BT[:, 1:]) * share
    backward(loss)
    return loss.detach()
