"""Optimiser and learning-rate schedule as functions of the optimiser step."""

import math

import torch
from torch import nn

from attnres.parameters import parameter_groups
from experiments.spec import RunSpec


def build_optimizer(model: nn.Module, spec: RunSpec) -> torch.optim.Optimizer:
    """AdamW (fused) over the model's decayed and undecayed groups."""
    train = spec.train
    return torch.optim.AdamW(
        parameter_groups(model, train.weight_decay),
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        eps=1e-8,
        fused=True,
    )


def learning_rate(spec: RunSpec, step: int) -> float:
    """Learning rate of optimiser step ``step`` (1 .. spec.steps).

    ``lr * step / warmup`` during warm-up; then the decay reaches ``lr * lr_floor`` at exactly the last
    step of the run. Before its cooldown, wsd gives exactly ``lr``, as constant does: a run that branches
    from a trunk has had the trunk's rates to the last bit.
    """
    train = spec.train
    if step <= train.warmup:
        return train.lr * step / train.warmup
    done = (step - train.warmup) / (spec.steps - train.warmup)
    shares = {
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        "linear": 1 - done,
        "constant": 1.0,
        "wsd": min(1.0, (spec.steps - step) / (train.cooldown or 1)),
    }
    return train.lr * (train.lr_floor + (1 - train.lr_floor) * shares[train.schedule])
