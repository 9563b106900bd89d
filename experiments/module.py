"""The LightningModule: one training step is one optimiser step on one global batch."""

from functools import partial

import lightning.pytorch as lightning
import torch
from torch import Tensor

from attnres.decoder import Decoder
from experiments.dynamics import Dynamics
from experiments.optim import build_optimizer, learning_rate
from experiments.parallel import Parallel
from experiments.spec import RunSpec
from experiments.step import optimizer_step


class TrainingModule(lightning.LightningModule):
    """Trains a `Decoder` as ``spec`` says.

    Optimisation is manual, so that a step means the same whatever the number of optimisers or
    micro-batches: Lightning counts one global step per optimiser and steps early on a short epoch.
    The step counter is our own (`step`); the learning rate is a function of it alone.

    Args:
        model: the decoder to train.
        spec: the run.
        dynamics: watches the steps it planned.
        parallel: how the processes of the run share the model.
        micro_sequences: sequences of one forward pass; None: the whole share of a process.
    """

    def __init__(
        self,
        model: Decoder,
        spec: RunSpec,
        dynamics: Dynamics,
        parallel: Parallel,
        *,
        micro_sequences: int | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.spec = spec
        self.dynamics = dynamics
        self.parallel = parallel
        self.micro_sequences = micro_sequences
        self.step = 0
        """Optimiser steps done."""
        self.last_loss = float("nan")
        self.last_grad_norm = float("nan")
        self.last_lr = float("nan")

    def configure_model(self) -> None:
        """Lightning's moment for dividing the model: the processes have met, there is no optimiser yet."""
        self.parallel.divide(self.model, self.device_mesh)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over the model's parameter groups."""
        return build_optimizer(self.model, self.spec)

    def training_step(self, batch_BT: Tensor, batch_idx: int) -> None:  # noqa: ARG002
        """One optimiser step; ``batch_BT`` (sequence, position + 1) is this process's share of its batch."""
        self.last_lr = learning_rate(self.spec, self.step + 1)
        loss, self.last_grad_norm = optimizer_step(
            self.model,
            self.optimizers(),  # type: ignore[arg-type]
            batch_BT,
            self.spec,
            lr=self.last_lr,
            micro_sequences=self.micro_sequences,
            backward=self.manual_backward,
            accumulating=partial(self.parallel.accumulating, self.trainer),
            watch=self.dynamics.watch(self.step + 1, self.model),
        )
        self.last_loss = self.parallel.group.mean(loss)
        self.step += 1
