"""Checkpoints: whole or absent, checked, the newest by its step."""

import errno
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

import experiments.checkpoint as checkpoint
from attnres.errors import UserError
from experiments.checkpoint import load_latest, save_checkpoint


def state(step: int) -> dict:
    generator = torch.Generator().manual_seed(step)
    return {
        "spec_id": "abc",
        "model": {"weight": torch.randn(100, generator=generator)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step))}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95)}]},
        "rng": torch.get_rng_state(),
        "seconds": 1.5 * step,
        "note": None,
    }  # fmt: skip


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    path = save_checkpoint(tmp_path / "checkpoints", 120, state(120))
    loaded = load_latest(tmp_path / "checkpoints")
    assert (loaded.step, loaded.path, loaded.damaged) == (120, path, [])
    assert same(loaded.state, state(120))


def test_no_checkpoint_is_none(tmp_path):
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "missing") is None


def test_the_last_two_are_kept(tmp_path):
    for step in (3, 99, 100, 1000):
        save_checkpoint(tmp_path, step, state(step))
    assert [name.split("-")[1] for name in names(tmp_path)] == ["00000100", "00001000"]


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(200, 300):
        content[place] ^= 0xFF
    path.write_bytes(content)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_flip, damage_cut, damage_empty])
def test_l11_a_damaged_newest_is_named_and_the_one_before_it_used(tmp_path, damage, caplog):
    save_checkpoint(tmp_path, 10, state(10))
    newest = save_checkpoint(tmp_path, 20, state(20))
    damage(newest)
    loaded = load_latest(tmp_path)
    assert (loaded.step, loaded.damaged) == (10, [newest])
    assert same(loaded.state, state(10))
    assert newest.name in caplog.text
    again = save_checkpoint(tmp_path, 20, state(20))
    assert again == newest and load_latest(tmp_path).step == 20, "the good one takes the bad one's place"


def test_l11_the_good_one_outlives_damaged_ones(tmp_path):
    good = save_checkpoint(tmp_path, 10, state(10))
    damage_flip(save_checkpoint(tmp_path, 20, state(20)))
    resumed = save_checkpoint(tmp_path, 15, state(15))
    assert names(tmp_path) == [good.name, resumed.name]
    damage_flip(resumed)
    assert load_latest(tmp_path).path == good


def test_l11_only_damaged_ones_are_reported_and_never_loaded(tmp_path, caplog):
    damage_flip(save_checkpoint(tmp_path, 10, state(10)))
    assert load_latest(tmp_path) is None
    assert "step-00000010" in caplog.text


def test_l21_a_fresh_process_loads_it_as_weights_only(tmp_path):
    path = save_checkpoint(tmp_path, 7, state(7))
    code = "import sys, torch; print(torch.load(sys.argv[1], weights_only=True)['seconds'])"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "10.5"


def test_l23_the_newest_is_the_highest_step_whatever_the_clock_says(tmp_path):
    oldest = save_checkpoint(tmp_path, 9, state(9))
    save_checkpoint(tmp_path, 1000, state(1000))
    os.utime(oldest, (time.time() + 1000,) * 2)
    assert load_latest(tmp_path).step == 1000


def test_other_files_are_neither_loaded_nor_deleted(tmp_path):
    for name in ("last.ckpt", "step-5.ckpt", "step-00000099-nothexnothexnoth.ckpt", "notes.txt"):
        (tmp_path / name).write_text("mine")
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, state(step))
    assert load_latest(tmp_path).step == 3
    assert len(names(tmp_path)) == 6


def test_w08_leftovers_of_killed_attempts_are_cleared(tmp_path):
    (tmp_path / ".step-00000005-0123456789abcdef.ckpt.1a2b3c4d.tmp").write_bytes(b"half")
    save_checkpoint(tmp_path, 5, state(5))
    assert len(names(tmp_path)) == 1


def test_a_full_disk_leaves_those_before_and_is_named(tmp_path, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, state(step))
    before = names(tmp_path)
    write_bytes = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write_bytes(self, bytes(data)[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"step-00000003-.*No space left on device.*make room"):
        save_checkpoint(tmp_path, 3, state(3))
    monkeypatch.undo()
    assert names(tmp_path) == before
    assert load_latest(tmp_path).step == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        save_checkpoint(tmp_path / "checkpoints", 1, state(1))


def test_nothing_is_deleted_before_the_new_one_is_there(tmp_path, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, state(step))
    before = names(tmp_path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_drop_old", stop)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 3, state(3))
    assert set(before) < set(names(tmp_path))


def checkpoint_for_ever(folder: Path, pipe: Connection) -> None:
    """Continue from what is there; tell every step whose checkpoint is done."""
    found = load_latest(folder)
    step = found.step if found else 0
    pipe.send(step)
    while True:
        step += 1
        save_checkpoint(folder, step, {"weight": torch.full((200_000,), float(step))})
        pipe.send(step)


def test_l09_killed_at_any_moment_the_newest_whole_one_loads(tmp_path):
    """Killed at 20 moments, the process goes on each time from a checkpoint it had reported, or a later one."""
    torch.set_num_threads(1)
    processes = multiprocessing.get_context("fork")
    told = 0
    for attempt in range(20):
        here, there = processes.Pipe(duplex=False)
        process = processes.Process(target=checkpoint_for_ever, args=(tmp_path, there))
        process.start()
        assert here.recv() >= told, "nothing that was reported done is lost"
        told = here.recv()
        time.sleep(0.007 * attempt)
        process.kill()
        process.join()
        while here.poll():
            told = here.recv()
        loaded = load_latest(tmp_path)
        assert loaded.damaged == []
        assert loaded.step >= told
        assert (loaded.state["weight"] == loaded.step).all()
    save_checkpoint(tmp_path, loaded.step + 1, {})
    assert len(names(tmp_path)) == 2
