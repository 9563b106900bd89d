"""The order of the data: computed from the step, the same for every start, rank and storage."""

import hashlib
import math
import subprocess
import sys

import numpy as np
import pytest

from attnres.errors import UserError
from experiments.data.order import permutation, random_bits
from experiments.data.store import open_tokens, write_tokens
from experiments.data.tokens import TokenData

SEQ_LEN = 16
WINDOWS = 50


@pytest.fixture(scope="module")
def tokens():
    """Every window of 16 starts with its own number, so that a batch tells which windows it holds."""
    tokens = random_bits(WINDOWS * SEQ_LEN + 1, 1) % 40_000
    tokens[:-1:SEQ_LEN] = np.arange(WINDOWS)
    return tokens.astype(np.int64)


def store(folder, tokens, val=None, **options) -> TokenData:
    chunks = [("train", tokens, 2 * len(tokens)), ("val", tokens[:100] if val is None else val, 300)]
    write_tokens(folder, chunks, about={"name": "numbered"}, vocab_size=65_536, **options)
    return open_tokens(folder)


@pytest.fixture(scope="module")
def data(tokens, tmp_path_factory):
    return store(tmp_path_factory.mktemp("tokens") / "made", tokens)


def order(data: TokenData, sequences: range, data_seed: int = 0) -> list[int]:
    """Windows of the endless order, one batch of one sequence at a time."""
    batches = [data.batch(g, batch_sequences=1, seq_len=SEQ_LEN, data_seed=data_seed) for g in sequences]
    return [int(batch[0, 0]) for batch in batches]


def test_a_batch_holds_windows_of_the_stream(data, tokens):
    batch = data.batch(2, batch_sequences=4, seq_len=SEQ_LEN, data_seed=3)
    assert batch.shape == (4, SEQ_LEN + 1) and batch.dtype == np.int64
    for row in batch:
        start = int(row[0]) * SEQ_LEN
        assert (row == tokens[start : start + SEQ_LEN + 1]).all()


def test_each_pass_holds_every_window_once_and_passes_differ(data):
    passes = [order(data, range(n * WINDOWS, (n + 1) * WINDOWS)) for n in range(3)]
    assert all(sorted(one) == list(range(WINDOWS)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert passes[0] != list(range(WINDOWS))
    assert order(data, range(WINDOWS), data_seed=1) != passes[0]


def test_batches_are_slices_of_one_endless_order(data):
    endless = order(data, range(6 * 35))
    for step in range(6):
        batch = data.batch(step, batch_sequences=35, seq_len=SEQ_LEN, data_seed=0)
        assert batch[:, 0].tolist() == endless[step * 35 : (step + 1) * 35]


def test_l02_the_order_of_every_pass_is_the_same_in_a_fresh_process(data, tmp_path, tokens):
    store(tmp_path / "made", tokens)
    code = (
        "import sys, hashlib; from pathlib import Path; from experiments.data.store import open_tokens\n"
        "data = open_tokens(Path(sys.argv[1]))\n"
        "for step in map(int, sys.argv[2:]):\n"
        "    batch = data.batch(step, batch_sequences=50, seq_len=16, data_seed=0)\n"
        "    print(hashlib.sha256(batch.tobytes()).hexdigest())"
    )
    here = [
        hashlib.sha256(data.batch(n, batch_sequences=50, seq_len=16, data_seed=0).tobytes()).hexdigest()
        for n in range(3)
    ]
    resumed = []
    for steps in (["0"], ["1"], ["2"]):  # a process a pass: preempted at both boundaries
        command = [sys.executable, "-c", code, str(tmp_path / "made"), *steps]
        resumed += subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert resumed == here
    assert len(set(here)) == 3


@pytest.mark.parametrize("world", [2, 5])
def test_l03_ranks_share_each_pass_without_gap_or_repeat(data, world):
    """Resumed in the middle of the second pass: over the ranks, every window of that pass once."""
    seen = []
    for step in range(5, 10):  # 10 sequences a step: pass 1 is steps 5 .. 9, started here at step 5
        slices = [
            data.batch(step, batch_sequences=10, seq_len=SEQ_LEN, data_seed=7, rank=rank, world=world)
            for rank in range(world)
        ]
        whole = data.batch(step, batch_sequences=10, seq_len=SEQ_LEN, data_seed=7)
        assert (np.concatenate(slices) == whole).all()
        seen += whole[:, 0].tolist()
    assert sorted(seen) == list(range(WINDOWS))


def test_a_batch_that_ranks_cannot_share_is_refused(data):
    with pytest.raises(UserError, match="batch of 10 sequences cannot be shared by 3 processes"):
        data.batch(0, batch_sequences=10, seq_len=SEQ_LEN, data_seed=0, world=3)


@pytest.mark.parametrize("shard_tokens", [801, 115, 7, 1])
def test_s14_how_the_tokens_are_cut_into_files_does_not_show(data, tokens, tmp_path, shard_tokens):
    cut = store(tmp_path / "cut", tokens, shard_tokens=shard_tokens)
    splits, whole = cut.manifest["splits"], data.manifest["splits"]
    assert len(splits["train"]["shards"]) == math.ceil(len(tokens) / shard_tokens)
    assert splits["train"]["stream_sha256"] == whole["train"]["stream_sha256"]
    assert (splits["train"]["tokens"], splits["train"]["bytes"]) == (801, 1602)
    for step in range(3):
        options = {"batch_sequences": 20, "seq_len": SEQ_LEN, "data_seed": 4}
        assert (cut.batch(step, **options) == data.batch(step, **options)).all()
    assert (cut.validation(SEQ_LEN, 1000) == data.validation(SEQ_LEN, 1000)).all()
    assert (np.asarray(cut.train) == tokens).all()


def test_s13_passes_over_the_data_are_counted(data, tokens):
    assert data.passes(3 * len(tokens)) == 3.0


def test_validation_is_the_same_whole_windows_and_at_most_what_was_asked_for(tmp_path, tokens):
    data = store(tmp_path / "made", tokens, val=tokens)
    windows = data.validation(SEQ_LEN, 10 * SEQ_LEN + 5)
    assert windows.shape == (10, SEQ_LEN + 1)
    assert windows[:, 0].tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40, 45], "spread over the split"
    assert data.validation(SEQ_LEN, 10**9)[:, 0].tolist() == list(range(WINDOWS)), "all there are"


@pytest.mark.parametrize(
    ("call", "named"),
    [(lambda data: data.batch(0, batch_sequences=1, seq_len=801, data_seed=0), "training split of 801 tokens"),
     (lambda data: data.validation(200, 1000), "validation split of 100 tokens"),
     (lambda data: data.validation(SEQ_LEN, 10), "less than one window")],
)  # fmt: skip
def test_too_little_data_is_named(data, call, named):
    with pytest.raises(UserError, match=named):
        call(data)


def test_bits_per_byte_of_a_uniform_guess_over_bytes_is_eight(data):
    assert data.val_bytes_per_token == 3.0
    assert data.bits_per_byte(math.log(256)) == pytest.approx(8 / 3)


def test_a_token_outside_the_vocabulary_is_refused_and_nothing_is_left(tmp_path):
    chunks = [("train", np.array([1, 99]), 2)]
    with pytest.raises(ValueError, match="token 99 is outside the vocabulary of 64"):
        write_tokens(tmp_path / "made", chunks, about={"name": "bad"}, vocab_size=64)
    assert list(tmp_path.iterdir()) == []


def test_random_bits_are_those_of_splitmix64():
    """From the generator's published form, step by step in Python's integers."""

    def splitmix(state: int) -> int:
        mask = 2**64 - 1
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & mask
        return state ^ (state >> 31)

    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    start = splitmix((0 + 11 * golden + 1) & mask)
    start = splitmix((start + 5 * golden + 1) & mask)
    assert random_bits(3, 11, 5).tolist() == [splitmix((start + n * golden) & mask) for n in (1, 2, 3)]


def test_permutations_are_fair():
    """Places of one entry over 4,000 keys: chi-square of 8 cells, 7 degrees of freedom, 1e-4 tail at 29.9."""
    places = [int(np.flatnonzero(permutation(8, key, 3, 9) == 0)[0]) for key in range(4000)]
    counts = np.bincount(places, minlength=8)
    assert ((counts - 500) ** 2 / 500).sum() < 29.9


def test_a_permutation_of_a_million_windows_is_cheap_after_the_first_time():
    import time

    permutation(10**6, 1, 2, 3)
    started = time.perf_counter()
    permutation(10**6, 1, 2, 3)
    assert time.perf_counter() - started < 1e-3
