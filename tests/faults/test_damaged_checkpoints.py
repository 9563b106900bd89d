"""Checkpoints that a disk or a person damaged: named, passed over, and the results are the same."""

import signal
from pathlib import Path

import pytest

from tests.faults.cells import END_SECONDS, Started, outcome
from tests.faults.conftest import tiny_spec
from tests.faults.sabotage import SignalAt


def flip(path: Path, moments) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(100):
        content[moments.randrange(len(content))] ^= 1 << moments.randrange(8)
    path.write_bytes(content)


def cut(path: Path, moments) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: moments.randrange(len(content))])


CASES = [
    pytest.param(damage, which, id=f"{damage.__name__}-{which}", marks=marks)
    for damage in (flip, cut)
    for which, marks in (("newest", []), ("before", [pytest.mark.faults]), ("both", [pytest.mark.faults]))
]


@pytest.mark.parametrize(("damage", "which"), CASES)
def test_l11_a_damaged_checkpoint_is_named_and_passed_over(
    damage, which, moments, settings, undisturbed, tmp_path
):
    cell = Started(
        tiny_spec(), settings, tmp_path / "cell", SignalAt("dropping old checkpoints", 9, signal.SIGTERM)
    )
    assert cell.ended(END_SECONDS) == 130
    kept = sorted((cell.run_dir / "checkpoints").glob("*.ckpt"))
    assert len(kept) == 2
    damaged = {"newest": kept[1:], "before": kept[:1], "both": kept}[which]
    for path in damaged:
        damage(path, moments)
    again = Started(tiny_spec(), settings, tmp_path / "cell")
    assert again.ended() == 0
    for path in damaged:
        named = f"{path.name}: damaged checkpoint" in again.said()
        assert named or which == "before", "whichever is needed and damaged is named"
    log = (cell.run_dir / "log.txt").read_text()
    if which == "both":
        assert "no checkpoint is intact (2 damaged); the run starts again at step 1" in log
    else:
        used = kept[0] if which == "newest" else kept[1]
        assert f"continues from step {int(used.name[5:13])} of 16 ({used.name})" in log
    assert outcome(cell.run_dir) == undisturbed(0)[0]
