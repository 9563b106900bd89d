"""A real Slurm on this machine: munge, slurmctld and three slurmd on loopback, all in one folder."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

NODES = 3
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
START_SECONDS = 60.0

CONFIGURATION = """
ClusterName=scaling
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
SlurmctldDebug=debug
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobRequeue=1
MaxArraySize=4
KillWait=30
ReturnToService=2
"""


def missing_programs() -> list[str]:
    """Programs of Slurm that are not on the PATH (daemons lie in sbin)."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Cluster:
    """Three one-CPU nodes; partition ``low`` (preemptable, the default) and ``high``.

    Without accounting, arrays of at most four tasks. Stops all that it started, whatever happens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        self._configure()
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(self, *arguments: str) -> str:
        """Output of a Slurm command."""
        done = subprocess.run(
            arguments, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def stop(self) -> None:
        """Cancel the jobs, then end the daemons: nodes, controller, munge."""
        if len(self._daemons) > 1:
            self.cancel_jobs()
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons = []
        for process in self._left():
            process.kill()

    def _left(self) -> list[psutil.Process]:
        """Whatever was started with this cluster's configuration and is still there: jobs, sruns, sweeps."""
        ours = self.environment["SLURM_CONF"]
        found = []
        for process in psutil.process_iter():
            try:
                stepd = process.name() == "slurmstepd" and process.cwd() == str(self.folder)
                if stepd or process.environ().get("SLURM_CONF") == ours:  # a stepd writes over its own
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
        return found

    def _configure(self) -> None:
        ports = _free_ports(NODES + 1)
        lines = [CONFIGURATION.format(folder=self.folder, ports=ports)]
        for node in range(1, NODES + 1):
            lines.append(
                f"NodeName=n{node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[node]} CPUs=1 State=UNKNOWN"
            )
        nodes = f"n[1-{NODES}]"
        lines.append(
            f"PartitionName=low Nodes={nodes} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=30"
        )
        lines.append(f"PartitionName=high Nodes={nodes} PriorityTier=10 PreemptMode=OFF")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o600)
        self.folder.chmod(0o755)  # munge refuses a socket below a folder that others may write or not enter

    def _start_all(self) -> None:
        at = self.folder
        self._start(
            "munged", "--foreground", "--force", f"--key-file={at}/munge.key", f"--socket={at}/munge.socket",
            f"--pid-file={at}/munged.pid", f"--log-file={at}/munged.log", f"--seed-file={at}/munge.seed",
        )  # fmt: skip
        _wait(lambda: (at / "munge.socket").exists(), "munged", self._told)
        self._start("slurmctld", "-D")
        for node in range(1, NODES + 1):
            self._start("slurmd", "-D", "-N", f"n{node}")
        _wait(self._all_idle, "nodes", self._told)

    def _start(self, *command: str) -> None:
        with open(self.folder / f"{command[0]}.out", "ab") as output:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=output, stderr=output)
            )

    def _all_idle(self) -> bool:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T", "--partition=low"],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.split() == ["idle"] * NODES

    def cancel_jobs(self) -> None:
        """Empty the queue; a task of a cell may take some seconds to write its checkpoint."""
        subprocess.run(
            ["scancel", "--user=root"], env=self.environment, capture_output=True, check=False, timeout=60
        )
        deadline = time.monotonic() + 45
        while time.monotonic() < deadline:
            left = subprocess.run(
                ["squeue", "--noheader"], env=self.environment, capture_output=True, text=True, check=False
            )
            if left.returncode != 0 or not left.stdout.strip():
                return
            time.sleep(0.5)

    def _told(self) -> str:
        logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


def _free_ports(count: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _wait(ready: Callable[[], bool], what: str, told: Callable[[], str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not come up in {START_SECONDS:.0f} s\n{told()}"
        time.sleep(0.2)
