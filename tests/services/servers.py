"""A PostgreSQL and an MLflow server of a test's own: loopback, free ports, private folders, stopped at the end."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url

START_SECONDS = 120.0
USER = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""


def program(name: str) -> str | None:
    """Path of one of PostgreSQL's programs; Debian keeps the server's off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


def missing() -> list[str]:
    """What `make test-services` installs and is not here."""
    found = {"initdb": program("initdb"), "postgres": program("postgres")}
    try:
        import psycopg

        found["psycopg"] = psycopg.__file__
    except ImportError:
        found["psycopg"] = None
    return [name for name, path in found.items() if path is None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Until ``ready``; the server must stay alive meanwhile."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.2)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Postgres:
    """A server that is created, started, stopped and started again on the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.user = USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        self._call(
            "initdb", "-D", str(folder / "data"), "-U", "scaling", "-A", "trust", "-E", "UTF8", "--locale=C"
        )

    def _call(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(program(name)), *arguments], user=self.user, cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        log = self.folder / "server.log"
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [str(program("postgres")), "-D", str(self.folder / "data"), "-p", str(self.port),
                 "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}",
                 "-c", "fsync=off"],
                user=self.user, cwd=self.folder, stdout=output, stderr=output,
            )  # fmt: skip
        wait_for(lambda: self._accepts(), self._process, log)

    def _accepts(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._plain("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """At once, cutting every connection, as a machine that is taken away does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=30)
            self._process = None

    def database(self, name: str) -> str:
        """Make the database -> its address for MLflow."""
        import psycopg

        with psycopg.connect(self._plain("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return str(make_url(self._plain(name)).set(drivername="postgresql+psycopg"))

    def _plain(self, name: str) -> str:
        return f"postgresql://scaling@127.0.0.1:{self.port}/{name}"


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running one. Its folder lies where its user may enter: a test's own folder is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="scaling-postgres-"))
    server = Postgres(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


class MlflowServer:
    """``mlflow server`` over a store; artefacts go through it into ``folder``."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store, self.port = folder, store, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", self.store]
        command += ["--artifacts-destination", str(self.folder / "files"), "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        log = self.folder / "server.log"
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        wait_for(lambda: answers(self.port), self._process, log)

    def stop(self) -> None:
        """At once, with its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=30)
            self._process = None


@contextmanager
def mlflow_server(folder: Path, store: str) -> Iterator[MlflowServer]:
    """A running one."""
    server = MlflowServer(folder, store)
    try:
        server.start()
        yield server
    finally:
        server.stop()
