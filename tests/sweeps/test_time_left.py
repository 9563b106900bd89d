"""The time left, where a sweep continues cells that earlier ones have begun."""

import json
import time

import pytest

from experiments.settings import Settings
from sweeps.grid import load_grid
from sweeps.launch import local
from sweeps.launch.local import _Pool
from sweeps.launch.retry import Retries


def test_what_earlier_sweeps_trained_is_neither_left_nor_speed(tmp_path, monkeypatch) -> None:
    cells = load_grid("smoke").cells[:3]
    settings = Settings(runs=tmp_path)

    def reach(index: int, share: float) -> None:
        cell = cells[index]
        folder = tmp_path / cell.spec.spec_id
        folder.mkdir(exist_ok=True)
        step = round(share * cell.spec.steps)
        row = {"step": step, "tokens": 1, "train_loss": 1.0, "seconds": 1.0}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")

    for index in range(3):
        reach(index, 0.5)
    pool = _Pool(cells, settings, lambda _: None, Retries(0))
    half = sum(pool.resumed.values())
    assert half == pytest.approx(sum(cell.trained() for cell in cells) / 2, rel=0.02)
    first = pool.waiting[0]
    pool.waiting.remove(first)
    pool.running = {first.spec.spec_id: local._Job(first, None, 0, None)}  # type: ignore[arg-type]
    monkeypatch.setattr(pool, "started", time.monotonic() - 100)
    assert pool.progress().seconds_left is None, "nothing was trained yet"
    reach(cells.index(first), 1.0)
    trained = first.trained() - pool.resumed[first.spec.spec_id]
    assert pool.progress().seconds_left == pytest.approx((half - trained) * 100 / trained, rel=0.01)
