"""Lightning's part of a run: it loops and places tensors; steps, history and checkpoints are ours."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import IterableDataset

from experiments.callbacks import Recorder
from experiments.data.base import TokenData
from experiments.group import Group
from experiments.module import TrainingModule
from experiments.parallel import Parallel
from experiments.spec import RunSpec


class Steps(IterableDataset[torch.Tensor]):
    """The batches of steps ``start`` .. ``spec.steps - 1``, this process's share of each, from its number."""

    def __init__(self, data: TokenData, spec: RunSpec, start: int, group: Group) -> None:
        self.data, self.spec, self.start, self.group = data, spec, start, group

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(self.start, self.spec.steps):
            yield torch.from_numpy(
                self.data.batch(
                    step,
                    batch_sequences=self.spec.batch_sequences,
                    seq_len=self.spec.shape.seq_len,
                    data_seed=self.spec.data_seed,
                    rank=self.group.rank,
                    world=self.group.world,
                )
            )


class _Restore(lightning.Callback):
    """Loads a checkpoint's state once model and optimiser are on their device."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        states = self.state["model"], self.state["optimizer"]
        pl_module.parallel.restore(pl_module.model, trainer.optimizers[0], states)
        torch.set_rng_state(self.state["rng"])


class _Trainer(lightning.Trainer):
    """Lightning's, deaf to SIGTERM: told of one before the first step, it ends the process with code 0.

    `experiments.callbacks.Stop` hears it all the same, and the run ends after its step.
    """

    @property
    def received_sigterm(self) -> bool:
        """Never."""
        return False


def make_trainer(
    spec: RunSpec,
    device: torch.device,
    parallel: Parallel,
    run_dir: Path,
    recorder: Recorder,
    state: dict[str, Any] | None,
) -> lightning.Trainer:
    """A trainer that only loops, from the checkpoint ``state`` on if there is one."""
    group = parallel.group
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for message in (
        ".*does not have many workers.*",
        ".*GPU available but not used.*",
        ".*isinstance.*LeafSpec.*",
        ".*`broadcast_buffers` is deprecated.*",
        ".*`srun` command is available.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    return _Trainer(
        accelerator=device.type,
        devices=group.world // group.nodes,
        num_nodes=group.nodes,
        strategy=parallel.strategy(),
        plugins=[group.place] if group.place else None,
        precision="bf16-mixed" if spec.train.precision == "bf16" else "32-true",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=run_dir,
        callbacks=[*([_Restore(state)] if state else []), recorder],
    )
