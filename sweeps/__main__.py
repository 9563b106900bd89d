"""``python -m sweeps {list,plan,run,status,sync,prune,export} GRID``: many runs, planned, executed, counted.

GRID is a registered grid or the path of a Python file that registers one.
Exit codes: 0 done, 1 some cells failed, 2 wrong usage or input, 130 interrupted.
"""

import argparse
import os
import sys
from pathlib import Path

from attnres.command_line import Parser, at_least, execute


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = Parser(
        prog="python -m sweeps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the registered grids")
    for name, text in (
        ("plan", "what would be trained, what is done, what it costs"),
        ("run", "train what is missing, then measure the arms' throughput side by side"),
        ("status", "how many cells are finished, failed, running, missing"),
        ("sync", "rebuild the MLflow store's runs from the run directories"),
        ("prune", "drop the checkpoints of cells that are done; all else of them stays"),
        ("export", "the study and its runs, without checkpoints, as one archive that opens elsewhere"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("grid", help="name of a grid, or a .py file that registers one")
        command.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the run directories")
        command.add_argument("--results", type=Path, default=Path("results"), help="folder of the studies")
        command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
        if name in ("plan", "run"):
            command.add_argument("--data", type=Path, default=Path("data"), help="folder of the token files")
            command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        if name == "prune":
            command.add_argument("--dry-run", action="store_true", help="only say what would be dropped")
        if name == "export":
            command.add_argument("--to", type=Path, help="the archive (default: GRID.tar.gz here)")
        if name == "run":
            command.add_argument("--launcher", default="local", help="where cells are executed")
            command.add_argument(
                "--site", type=Path, help="site file of --launcher slurm (default: site.toml if it is there)"
            )
            command.add_argument("--threads", type=int, default=1, help="CPU threads of a process")
            command.add_argument("--processes", type=int, default=1, help="processes that share a cell")
            command.add_argument(
                "--strategy", choices=("ddp", "fsdp"), default="ddp", help="how they share its model"
            )
            command.add_argument("--no-tracking", action="store_true", help="do not mirror to MLflow")
            command.add_argument(
                "--retries",
                type=int,
                default=2,  # outlives two accidents; a failure of the cell's own ends it when it repeats
                help="new starts of a cell that was killed, ran out of memory or lost its disk (default 2; "
                "--launcher slurm has `requeues` in the site file)",
            )
            failure = command.add_mutually_exclusive_group()
            failure.add_argument(
                "--keep-going", action="store_true", help="go on after a failed cell (default)"
            )
            failure.add_argument("--fail-fast", action="store_true", help="start no cell after a failed one")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command; errors for people are one line on stderr."""
    options = parser().parse_args(arguments)

    def command() -> int:
        at_least(1, options, "jobs", "threads", "processes")
        at_least(0, options, "retries")
        from sweeps import commands  # torch takes seconds to import: after the command line is checked

        return commands.COMMANDS[options.command](options)

    return execute(command)


if __name__ == "__main__":
    sys.exit(main())
