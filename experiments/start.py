"""A cell in as many processes as its settings ask for: started on this machine, watched, ended together."""

import logging
import multiprocessing
import signal
import sys
import tempfile
import time
from pathlib import Path

from attnres.command_line import INTERRUPTED, WRONG_INPUT
from attnres.errors import UserError
from experiments.environment import find_device
from experiments.feasibility import check_feasible, check_processes
from experiments.group import LeaderFailedError, started_as_one_of_several
from experiments.record import RunRecord, RunStatus, read_record
from experiments.settings import Settings
from experiments.signals import SIGNALS, exit_with, interrupting
from experiments.spec import RunSpec
from experiments.trunk import final_record

GRACE_SECONDS = 30
"""How long the processes that are left may take to write a checkpoint and a record before they are killed."""
LINGER_SECONDS = 1.0
"""A process that failed stays this long: what it saw may be another's death, and the agent, which looks ten
times a second, is to see that one first."""
LOOPBACK = "127.0.0.1"
PRELOADED = ["experiments.run"]
"""Imported once, by the server that the processes fork from."""


class ProcessLostError(RuntimeError):
    """A process of the run died, and there is no record."""


def train(spec: RunSpec, settings: Settings) -> RunRecord:
    """`experiments.run.run` in this process, or in several that it starts.

    They are those of torch.distributed's elastic agent: one that dies ends the others, and they end with
    this process, however it ends. Where srun or torchrun started this process beside others, it is one.

    Raises:
        UserError: as `run`; also processes that the spec or the machine cannot have.
        ProcessLostError: a process died, and the first wrote no record any more.
        KeyboardInterrupt: asked to stop before there was anything to record.
    """
    if settings.processes == 1 or started_as_one_of_several():
        from experiments.run import run  # Lightning takes seconds to import: only where it is used

        return run(spec, settings)
    check_feasible(spec)
    check_processes(spec, settings)
    done = final_record(settings.runs / spec.spec_id, settings)
    if done is not None:
        return done
    find_device(settings, settings.processes)
    with tempfile.TemporaryDirectory(prefix="attnres-") as folder:
        return _launch(spec, settings, Path(folder))


def word_warnings() -> None:
    """What loggers warn of, as a sweep looks for it in a run's log."""
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))


def _launch(spec: RunSpec, settings: Settings, folder: Path) -> RunRecord:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what counts is told below
    multiprocessing.set_forkserver_preload(PRELOADED)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=settings.processes,
        run_id=spec.spec_id,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{LOOPBACK}:0",
        local_addr=LOOPBACK,
        max_restarts=0,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        signals_to_handle=",".join(number.name for number in SIGNALS),  # passed on to every process
        shutdown_timeout=GRACE_SECONDS,
    )
    refusal, lost = folder / "refusal", ""
    try:
        elastic_launch(config, _one_of_several)(spec, settings, refusal)
    except SignalException:
        pass  # the processes have had the signal too, and have ended
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            ended_by = signal.Signals(-failure.exitcode).name
            lost = f"process {rank + 1} of {settings.processes} was ended by {ended_by}"
            print(f"error: {lost}; the same command continues", file=sys.stderr, flush=True)
    with interrupting():  # the agent's handlers still stand, for processes that are gone
        if refusal.exists():
            raise UserError(refusal.read_text())
        record = read_record(settings.runs / spec.spec_id)
        if record is not None:
            return record
        if lost:
            raise ProcessLostError(lost)
        raise KeyboardInterrupt


def _one_of_several(spec: RunSpec, settings: Settings, refusal: Path) -> None:
    """Train; a process that has nothing more to say waits for the agent, which ends it with the others."""
    from experiments.run import run

    word_warnings()
    with interrupting():
        try:
            record = run(spec, settings)
        except UserError as error:
            refusal.write_text(str(error))
            exit_with(WRONG_INPUT)
        except KeyboardInterrupt:
            exit_with(INTERRUPTED)
        except LeaderFailedError:
            return
        except Exception:
            time.sleep(LINGER_SECONDS)
            raise
        if record.status is RunStatus.INTERRUPTED:
            exit_with(INTERRUPTED)
