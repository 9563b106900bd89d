"""``python -m experiments {run spec.json, ui}``: one run, started or continued; the MLflow page.

Exit codes: 0 finished, 1 failed or diverged, 2 wrong usage or input, 130 interrupted.
"""

import argparse
import os
import socket
import sys
from pathlib import Path

from attnres.command_line import Parser, at_least, execute
from attnres.errors import UserError
from attnres.json_files import read_model
from experiments.settings import Settings
from experiments.signals import exit_with, interrupting

EXIT_CODES = {"finished": 0, "failed": 1, "diverged": 1, "interrupted": 130}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line; operational settings only, science is in the spec."""
    parser = Parser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train one spec to its end, from its newest checkpoint")
    run.add_argument("spec", type=Path, help="spec.json")
    run.add_argument("--settings", type=Path, help="settings.json: operational settings")
    run.add_argument("--processes", type=int, help="processes that train it together")
    run.add_argument("--strategy", choices=("ddp", "fsdp"), help="how they share the model")
    ui = commands.add_parser("ui", help="serve the MLflow store in use on loopback")
    ui.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the run directories")
    ui.add_argument("--port", type=int, default=5000)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; errors for people are one line on stderr."""
    options = parse(arguments)
    if options.command == "ui":
        return execute(lambda: _serve(options))
    with interrupting():
        return execute(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    at_least(1, options, "processes")
    from experiments.group import LeaderFailedError, is_first
    from experiments.run_folder import LOG_FILE
    from experiments.spec import RunSpec
    from experiments.start import ProcessLostError, train, word_warnings

    word_warnings()
    advice = "mend it, or name another file"
    spec = read_model(options.spec, RunSpec, advice)
    settings = read_model(options.settings, Settings, advice) if options.settings else Settings()
    named = {name: getattr(options, name) for name in ("processes", "strategy")}
    settings = settings.model_copy(update={name: value for name, value in named.items() if value})
    try:
        record = train(spec, settings)
    except ProcessLostError:
        return 1
    except LeaderFailedError:
        return 0  # the first process says why, and its code is the run's
    log = settings.runs / spec.spec_id / LOG_FILE
    told = f"val_loss {record.val_loss:.4f}" if record.val_loss is not None else f"see {log}"
    if is_first():
        print(f"{spec.spec_id} {record.variant}: {record.status} ({told})")
    return EXIT_CODES[record.status]


def _serve(options: argparse.Namespace) -> int:
    from experiments.mlflow_store import set_environment
    from experiments.tracking import store_uri, without_password

    uri = store_uri(options.runs)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise UserError(
            f"{without_password(uri)}: no store there yet; train a cell first (make sweep GRID=smoke)"
        )
    _check_port(options.port)
    set_environment()
    print(
        f"MLflow on http://127.0.0.1:{options.port} over {without_password(uri)} (Ctrl-C ends it)", flush=True
    )
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(options.port), "--workers", "1"]
    os.execv(sys.executable, command)


def _check_port(port: int) -> None:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise UserError(
            f"port {port}: cannot be used ({getattr(error, 'strerror', None) or error}); choose another "
            "(make ui PORT=5001)"
        ) from error


if __name__ == "__main__":
    exit_with(main())
