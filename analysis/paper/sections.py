"""The sections of the paper's page: claimed, re-analysed, elsewhere, here."""

from typing import Any

from analysis.figures.multiplier_by_axis import AXIS_WORDS
from analysis.paper.numbers import Numbers
from analysis.paper.table2 import PLOTTED
from analysis.published.attnres_scaling import CLAIM
from analysis.published.replications import SEEDED_DIFFERENCES
from analysis.report.document import Code, Paragraph, Row, Section, Table, line, row, table
from analysis.wording import MISSING, digits, is_missing, loss_text, p_text

AXES = {**AXIS_WORDS, "6nd": "6ND, active parameters", PLOTTED: "as plotted in Figure 4"}


def shown(m: dict[str, Any]) -> str:
    """A multiplier with its interval."""
    number, interval = number_and_interval(m)
    return f"{number} {interval}"


def number_and_interval(m: dict[str, Any]) -> tuple[str, str]:
    """A multiplier and its interval, as cells: three decimals, to be held against the paper's."""
    value, lo, hi = m.get("compute_multiplier"), m.get("lo"), m.get("hi")
    if is_missing(value) or is_missing(lo):
        return MISSING, MISSING
    return f"{value:.3f}", f"[{lo:.3f}, {hi:.3f}]"


def verdict(m: dict[str, Any]) -> str:
    """The verdict, or the reason why there is none."""
    return str(m["status"] if m.get("compute_multiplier") is None else m["verdict"])


def claimed(numbers: Numbers) -> Section:
    """What the paper states, and what follows from its curves."""
    at = next(
        r
        for r in numbers.curves
        if r["curves"] == "printed" and r["compute_pflops_days"] == CLAIM.compute_pflops_days
    )
    stated = (
        f"The text gives losses {CLAIM.loss_baseline:.3f} and {CLAIM.loss_variant:.3f} at "
        f"{CLAIM.compute_pflops_days:g} PFLOP/s-days; the printed curves give {at['loss_baseline']:.4f} and "
        f"{at['loss_variant']:.4f} there, and a multiplier of {at['compute_multiplier']:.3f}."
    )
    columns = "curves | arm | >PFLOP/s-days | >A, baseline | >exponent | >A, arm | >exponent"
    curves = table(
        "What follows from the curves: printed, drawn, and fitted again here",
        f"{columns} | >loss, baseline | >loss, arm | >multiplier",
        (_curve_row(r) for r in numbers.curves),
    )
    rounding = table(
        "What the printed digits allow, smallest to largest",
        "rounded | >multiplier | >range",
        (row(r["rounded"], *number_and_interval(r)) for r in numbers.rounding),
    )
    return Section("Claimed", "claimed", (Paragraph(line(stated)), curves, rounding))


def _curve_row(r: dict[str, Any]) -> Row:
    return row(
        r["curves"],
        Code(r["variant"]),
        digits(r["compute_pflops_days"], 2),
        f"{r['A_baseline']:.4f}",
        f"{r['alpha_baseline']:.4f}",
        f"{r['A_variant']:.4f}",
        f"{r['alpha_variant']:.4f}",
        loss_text(r["loss_baseline"]),
        loss_text(r["loss_variant"]),
        f"{r['compute_multiplier']:.3f}",
    )


def reanalysed(numbers: Numbers) -> Section:
    """Table 2 through the estimators of this project."""
    return Section(
        "Re-analysed",
        "reanalysed",
        (_multipliers(numbers), _laws(numbers), _sizes(numbers), _sensitivity(numbers), _tests(numbers)),
    )


def _multipliers(numbers: Numbers) -> Table:
    rows = (
        row(
            Code(m["variant"]),
            m["estimator"],
            AXES[m["compute_axis"]],
            m["irreducible"],
            *number_and_interval(m),
            digits(m.get("dof"), 2),
            "yes" if m["extrapolated"] else None,
            verdict(m),
        )
        for m in numbers.multipliers
    )
    columns = "arm | estimator | compute | E | >multiplier | >95 % interval | >dof | extrapolated | verdict"
    return table("Compute multipliers of Table 2: five sizes, one run a cell", columns, rows)


def _laws(numbers: Numbers) -> Table:
    rows = [
        row(
            Code(arm),
            axis,
            *(f"{law.parameters[n]:.4f} ± {law.standard_errors[n] or 0:.4f}" for n in ("A", "alpha")),
        )
        for axis, own in (("as plotted", numbers.laws), ("6ND", numbers.laws_6nd))
        for arm, law in own.items()
    ]
    return table("Power laws, compute in PFLOP/s-days", "arm | compute | >A | >exponent", rows)


def _sizes(numbers: Numbers) -> Table:
    rows = (
        row(
            Code(r["variant"]),
            r["size"],
            loss_text(r["loss_baseline"], 3),
            loss_text(r["loss_variant"], 3),
            loss_text(r["difference"], 3),
            f"{r['compute_multiplier']:.2f}",
        )
        for r in numbers.sizes
    )
    columns = "arm | size | >baseline | >arm | >difference | >multiplier"
    return table("Size by size (E = 0, compute 6ND)", columns, rows)


def _sensitivity(numbers: Numbers) -> Table:
    rows = (
        row(Code(r["variant"]), r["kind"], r["value"], *number_and_interval(r)) for r in numbers.sensitivity
    )
    columns = "arm | changed | to | >multiplier | >interval"
    return table("What moves the multiplier (E = 0 unless changed, compute 6ND)", columns, rows)


def _tests(numbers: Numbers) -> Table:
    rows = (row(Code(test["variant"]), test["test"], p_text(test["p"])) for test in numbers.tests)
    return table("Does the saving change with scale?", "arm | test | >p", rows)


def elsewhere(numbers: Numbers) -> Section:
    """What others published."""
    multipliers = (
        row(r["source"], Code(r["variant"]), *number_and_interval(r), verdict(r)) for r in numbers.elsewhere
    )
    marin = (
        row(r["setting"], Code(r["variant"]), f"{r['compute_multiplier']:.3f}", r["stated"], r["stated_wall"])
        for r in numbers.marin
    )
    seeded = (
        row(s.source, s.setting, loss_text(-s.mean, 3), loss_text(s.sd, 3), s.seeds)
        for s in SEEDED_DIFFERENCES
    )
    pairs = "source | setting | data | >parameters | >tokens | arm | metric | >baseline | >arm's | >gain"
    return Section(
        "Replicated elsewhere",
        "elsewhere",
        (
            table(
                "Sources with enough sizes, through pair + slope (E = 0, compute 6ND)",
                "source | arm | >multiplier | >95 % interval | verdict",
                multipliers,
            ),
            table(
                "marin-community/marin#9290, its own formula",
                "setting | arm | >multiplier | >stated | >stated, wall-clock",
                marin,
            ),
            table("Gains over seeds, nats", "source | setting | >gain | >sd | >seeds", seeded),
            table(
                "Every published pair; gain in nats a token, above 0 better",
                f"{pairs} | >seeds | caveat",
                (_pair_row(r) for r in numbers.differences),
            ),
        ),
    )


def _pair_row(r: dict[str, Any]) -> Row:
    return row(
        r["source"],
        r["setting"],
        r["data"],
        digits(r["params"], 3),
        digits(r["tokens"], 3),
        Code(r["variant"]),
        r["metric"].replace("_", " "),
        digits(r["baseline_value"], 5),
        digits(r["variant_value"], 5),
        loss_text(r["difference_nats"], 3),
        r["seeds"],
        r["caveat"],
    )


def here(numbers: Numbers) -> Section:
    """This project's committed studies."""
    if not numbers.here:
        return Section(
            "Measured here", "here", (Paragraph(line("No study of this project is committed yet.")),)
        )
    rows = (
        row(
            r["study"],
            Code(r["variant"]),
            AXES.get(r["compute_axis"], r["compute_axis"]),
            *number_and_interval(r),
            r["n_pairs"],
            verdict(r),
        )
        for r in numbers.here
    )
    columns = "study | arm | compute | >multiplier | >95 % interval | >pairs | verdict"
    return Section("Measured here", "here", (table("Headlines of this project's studies", columns, rows),))
