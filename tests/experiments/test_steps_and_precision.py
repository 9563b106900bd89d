"""Every step is one whole batch, whatever it is cut into; low precision is of the products alone."""

import pytest
import torch

from attnres.decoder import Decoder
from attnres.initialise import build
from experiments.checkpoint import load_latest
from experiments.history import read_rows
from experiments.record import RunStatus
from experiments.run import run


@pytest.mark.parametrize("micro_sequences", [None, 3, 5, 64])
def test_l07_l08_micro_batches_that_do_not_divide_the_batch_keep_every_step_whole(
    spec_of, settings, monkeypatch, micro_sequences
):
    """Sixteen sequences a step, cut into threes: no step is short, none is added, the budget is met exactly."""
    fed: list[int] = []
    loss_of = Decoder.loss

    def counting(self: Decoder, tokens_BT, targets_BT):
        fed.append(targets_BT.numel())
        return loss_of(self, tokens_BT, targets_BT)

    monkeypatch.setattr(Decoder, "loss", counting)
    spec = spec_of()
    record = run(spec, settings.model_copy(update={"micro_sequences": micro_sequences}))
    assert record.status is RunStatus.FINISHED and sum(fed) == spec.tokens
    a_step = -(-spec.batch_sequences // (micro_sequences or spec.batch_sequences))
    assert [sum(fed[k : k + a_step]) for k in range(0, len(fed), a_step)] == [512] * spec.steps
    rows = read_rows(settings.runs / spec.spec_id / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 25)) and rows[-1]["tokens"] == spec.tokens


def test_l24_small_updates_survive_bf16(spec_of, settings):
    """A hundred steps of a tiny rate: as many parameters move as in fp32, and the moments are fp32."""
    moved = {}
    for precision in ("fp32", "bf16"):
        spec = spec_of(precision=precision, lr=1e-5, tokens=100 * 512)
        record = run(
            spec, settings.model_copy(update={"checkpoint_steps": 99, "evaluations": 1, "probes": 0})
        )
        assert record.precision == precision
        state = load_latest(settings.runs / spec.spec_id / "checkpoints").state
        before = build(spec.shape, spec.stream, spec.seed).state_dict()
        changed = sum((state["model"][name] != before[name]).sum().item() for name in before)
        moved[precision] = changed / sum(tensor.numel() for tensor in before.values())
        moments = [value for of in state["optimizer"]["state"].values() for value in of.values()]
        tensors = [*state["model"].values(), *moments]
        assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert moved["fp32"] > 0.9
    assert moved["bf16"] == pytest.approx(moved["fp32"], abs=0.02)
