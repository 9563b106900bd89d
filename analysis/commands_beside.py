"""Sub-commands of ``python -m analysis`` that are no stage of a study: power, import, paper, dictionary."""

import argparse
from collections.abc import Callable
from pathlib import Path

from attnres.errors import UserError

DONE, STALE = 0, 1


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add them to the command line; ``add(name, command, text, study=...)`` makes a sub-parser."""
    power = add(
        "power", run_power, "interval and power of a planned study, by formula and simulation", study=False
    )
    power.add_argument("--pilot", type=Path, metavar="DIR", help="results/NAME that measured noise and slope")
    power.add_argument("--variant", help="arm of the pilot")
    power.add_argument("--multiplier", type=float, default=1.25, help="true compute multiplier (1.25)")
    power.add_argument("--against", type=float, default=1.0, help="multiplier to tell it from (1)")
    power.add_argument("--power", type=float, default=0.8, help="power to plan for (0.8)")
    power.epilog = "defaults without --pilot; with it, what the pilot's pairs measured stands in their place"
    power.add_argument("--sizes", type=int, help="distinct sizes (5)")
    power.add_argument("--seeds", type=int, help="seeds of every size (1)")
    power.add_argument("--range", type=float, help="largest compute over smallest (30)")
    power.add_argument("--seed-sd", type=float, help="standard deviation over seeds, nats (0.004)")
    power.add_argument("--correlation", type=float, help="of the seed noise of paired runs (0.3)")
    power.add_argument(
        "--lack-of-fit", type=float, help="scatter of the laws that the arms share, nats (0.004)"
    )
    power.add_argument("--exponent", type=float, help="of the law (0.057)")
    power.add_argument("--irreducible", type=float, help="irreducible loss, nats (0)")
    power.add_argument("--loss", type=float, help="loss at the middle of the ladder, nats (1.8)")
    importer = add("import", run_import, "a CSV or an MLflow experiment of other runs -> plan.json, runs.csv")
    importer.epilog = (
        "needed of every run: variant (the arm), size (a label), tokens, val_loss (nats a token), compute "
        "(training FLOPs of the arm itself). Taken where given: seed, lr, status, role (ladder, rate, null "
        "or overhead_only), params, and every column of runs.csv in results/README.md. Example: python -m "
        "analysis import --study results/mine --csv runs.csv --baseline prenorm --map variant=arm --map "
        "val_loss=eval_loss"
    )
    source = importer.add_mutually_exclusive_group(required=True)
    source.add_argument("--csv", type=Path, metavar="FILE", help="one run a line")
    source.add_argument("--mlflow", metavar="URI", help="tracking URI; needs --experiment")
    importer.add_argument("--experiment", help="name of the MLflow experiment")
    importer.add_argument("--baseline", required=True, help="the variant that the others are compared with")
    importer.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="e.g. val_loss=eval_loss, or val_loss=metrics.eval/loss for MLflow",
    )
    paper = add("paper", run_paper, "published numbers through this analysis -> results/paper/", study=False)
    paper.add_argument("--out", type=Path, default=Path("results/paper"), metavar="DIR")
    paper.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="studies that join the page"
    )
    quotes = add("quotes", run_quotes, "numbers in documents <- committed results", study=False)
    quotes.add_argument("documents", type=Path, nargs="+", metavar="FILE")
    quotes.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")
    quotes.add_argument("--check", action="store_true", help="change nothing; exit 1 if a number is stale")
    words = add("dictionary", run_dictionary, "the contracts -> the data dictionary of results/", study=False)
    words.add_argument("--out", type=Path, default=Path("results/README.md"), metavar="FILE")


def run_power(options: argparse.Namespace) -> int:
    """Print the expected interval, the power and the seeds needed."""
    from dataclasses import replace

    from analysis.outlook import ASSUMED, outlook_lines, resolve_lines
    from analysis.pilot import design_of_pilot
    from analysis.power import check_power, pairs_first_guess
    from analysis.study import Study

    design = ASSUMED
    if options.pilot is not None:
        if options.variant is None:
            raise UserError("--pilot needs --variant: the arm whose pairs measured the noise")
        design = design_of_pilot(Study(options.pilot), options.variant)
    given = {
        "num_sizes": options.sizes,
        "num_seeds": options.seeds,
        "compute_range": options.range,
        "seed_sd": options.seed_sd,
        "correlation": options.correlation,
        "lack_of_fit": options.lack_of_fit,
        "exponent": options.exponent,
        "irreducible": options.irreducible,
        "loss": options.loss,
    }
    design = replace(design, **{name: value for name, value in given.items() if value is not None})
    m1, m0 = options.multiplier, options.against
    simulated = check_power(design, m1, m0)
    for line in outlook_lines(design, (m1,)):
        print(line)
    print(f"power against {m0:.3g}, simulated: {simulated:.0%}")
    guess = pairs_first_guess(design, m1, m0, power=options.power)
    print(f"first guess with known variance: {guess:.1f} pairs (too few at few sizes)")
    for line in resolve_lines(design, m1, m0, options.power):
        print(line)
    return DONE


def run_import(options: argparse.Namespace) -> int:
    """Make a study from other people's runs."""
    from analysis.importing import import_csv, import_mlflow

    mapping = {}
    for pair in options.map:
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise UserError(f"--map {pair}: must be OURS=THEIRS")
        mapping[ours] = theirs
    if options.csv is not None:
        count = import_csv(options.csv, options.study, options.baseline, mapping)
    elif options.experiment is None:
        raise UserError("--mlflow needs --experiment")
    else:
        count = import_mlflow(options.mlflow, options.experiment, options.study, options.baseline, mapping)
    print(f"{options.study}: {count} runs; next: python -m analysis report --study {options.study}")
    return DONE


def run_paper(options: argparse.Namespace) -> int:
    """Analyse and draw the published numbers; print the re-analysed multipliers."""
    from analysis.paper import write_paper

    for line in write_paper(options.out, options.results):
        print(line)
    print(f"page: {options.out / 'paper.html'}")
    return DONE


def run_quotes(options: argparse.Namespace) -> int:
    """Fill the marked numbers of documents, or find the stale ones."""
    from analysis.quotes import fill_quotes

    stale = fill_quotes(options.documents, options.results, check=options.check)
    for line in stale:
        print(line)
    return STALE if options.check and stale else DONE


def run_dictionary(options: argparse.Namespace) -> int:
    """Write the data dictionary."""
    from analysis.dictionary import write_dictionary

    write_dictionary(options.out)
    print(options.out)
    return DONE
