"""Run by test_processes.py: every cell that is listed, trained by two processes together."""

import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path

from experiments.run import run
from experiments.settings import Settings
from experiments.spec import RunSpec

WORLD = 2


def train(rank: int, port: int, path: str) -> None:
    """As one of the processes that torchrun would start: it tells them who they are in the environment."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "together", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    for spec, settings in json.loads(Path(path).read_text()):
        run(RunSpec.model_validate(spec), Settings.model_validate(settings))


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=train, args=(rank, port, sys.argv[1])) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))
