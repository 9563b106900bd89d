"""The sub-commands of ``python -m analysis`` and their exit codes.

0 done; 2 wrong usage or input; 3 asked for one number that is not identifiable; 130 interrupted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import commands_beside
from attnres.command_line import Parser, execute

if TYPE_CHECKING:
    from analysis.comparison import Answer
    from analysis.study import Study

DONE, INCOMPLETE, NOT_IDENTIFIABLE = 0, 1, 3

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run one sub-command; returns the exit code."""
    options = build_parser().parse_args(arguments)
    command: Command = options.command
    return execute(lambda: command(options))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = Parser(
        prog="python -m analysis",
        description="Table, fits, multipliers, figures and report of a study.",
        epilog="exit codes: 0 done; 1 table --strict found missing or stray runs; 2 wrong usage or input; "
        "3 asked for one number that is not identifiable; 130 interrupted",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str, *, study: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        if study:
            sub.add_argument("--study", type=Path, required=True, metavar="DIR", help="results/NAME")
        return sub

    table = add("table", _table, "runs/ and plan.json -> runs.csv, curves.parquet")
    table.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="run directories (runs)"
    )
    table.add_argument("--strict", action="store_true", help="exit 1 unless every planned run finished")
    add("fits", _fits, "runs.csv -> fits/")
    multipliers = add(
        "multipliers", _multipliers, "runs.csv -> multipliers.csv; or one number with --variant"
    )
    multipliers.add_argument("--variant", help="print the multiplier of this arm only")
    multipliers.add_argument("--estimator", default="pair_slope", help="for --variant (pair_slope)")
    multipliers.add_argument("--compute-axis", default="exact", help="for --variant (exact)")
    multipliers.add_argument("--rate", default="matched", choices=("matched", "tuned"), help="for --variant")
    figures = add("figures", _figures, "files of the study -> figures/")
    report = add("report", _report, "everything from runs.csv to report.html and report.md")
    commands_beside.add_commands(add)
    for sub in (multipliers, figures, report):
        sub.add_argument(
            "--allow",
            action="append",
            default=[],
            metavar="COLUMN",
            help="compare pairs that differ in COLUMN, with a note",
        )
    return parser


def _table(options: argparse.Namespace) -> int:
    from analysis.table import build_table

    summary = build_table(options.study, options.runs)
    print(f"{options.study}/runs.csv: {summary.line()}")
    for name in summary.stray:
        print(f"not in plan: {options.runs / name}")
    return INCOMPLETE if options.strict and not summary.complete else DONE


def _fits(options: argparse.Namespace) -> int:
    from analysis.fits import write_fits
    from analysis.study import Study

    for line in write_fits(Study(options.study)):
        print(line)
    return DONE


def _multipliers(options: argparse.Namespace) -> int:
    from analysis.comparison import Comparison, Question
    from analysis.study import Study

    study = Study(options.study)
    if options.variant is None:
        _print_headline(_compare(study, options.allow))
        return DONE
    question = Question(options.variant, options.estimator, options.compute_axis, options.rate)
    row = Comparison(study, options.allow).answer(question).row()
    if row.get("compute_multiplier") is None:
        print(f"error: {row['status']}", file=sys.stderr)
        return NOT_IDENTIFIABLE
    print(_number(row))
    return DONE


def _compare(study: "Study", allow: Sequence[str]) -> "list[Answer]":
    from analysis.comparison import Comparison, write_multipliers
    from analysis.notes import write_notes
    from analysis.sensitivity import write_sensitivity

    comparison = Comparison(study, allow)
    answers = write_multipliers(comparison)
    write_sensitivity(comparison)
    write_notes(study, answers)
    return answers


def _print_headline(answers: "Sequence[Answer]") -> None:
    from analysis.comparison import HEADLINE, MATCHED

    for one in answers:
        question = one.question
        if (
            question.estimator == HEADLINE
            and question.rate == MATCHED
            and question.compute_axis in ("exact", "wall")
        ):
            row = one.row()
            shown = (
                row["status"]
                if row.get("compute_multiplier") is None
                else f"{_number(row)}  {row['verdict']}"
            )
            print(f"{question.variant:32s} {question.compute_axis:6s} {shown}")


def _number(row: dict[str, object]) -> str:
    return f"{row['compute_multiplier']:.4f} [{row['lo']:.4f}, {row['hi']:.4f}]"


def _figures(options: argparse.Namespace) -> int:
    from analysis.figures import draw_all
    from analysis.study import Study

    study = Study(options.study)
    _ = study.cells  # a table that cannot be read is an error, not a figure with nothing to show
    drawn = draw_all(study)
    good = [figure.name for figure in drawn if figure.exists]
    print(f"{options.study}/figures: {len(good)} drawn ({', '.join(good) or 'none'})")
    for figure in drawn:
        if not figure.exists:
            print(f"not drawn: {figure.name} ({figure.missing})")
    return DONE


def _report(options: argparse.Namespace) -> int:
    from analysis.fits import write_fits
    from analysis.report import write_report
    from analysis.study import Study

    study = Study(options.study)
    write_fits(study)
    answers = _compare(study, options.allow)
    _print_headline(answers)
    write_report(study)
    print(f"report: {options.study / 'report.html'}")
    return DONE
