"""Which parameters are decayed: matrices, and nothing that acts as a vector."""

from typing import Any

from torch import nn

UNDECAYED_SUFFIXES = ("gain", "embedding", "pseudo_query", "pseudo_queries")
"""By name, not by shape: queries stored as one matrix are still vectors (and never go to Muon)."""


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay (and a matrix optimiser) applies to ``parameter``."""
    return parameter.ndim >= 2 and not name.startswith("stream.") and not name.endswith(UNDECAYED_SUFFIXES)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two AdamW groups that hold every parameter once: decayed matrices, undecayed everything else."""
    named = list(model.named_parameters())
    decayed = [parameter for name, parameter in named if is_decayed(name, parameter)]
    undecayed = [parameter for name, parameter in named if not is_decayed(name, parameter)]
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]
