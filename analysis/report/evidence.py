"""The sections after the first screen: how the multipliers were had, number by number."""

from collections.abc import Iterator, Sequence
from typing import Any

from analysis.comparison import MATCHED, TUNED
from analysis.figures.base import Drawn
from analysis.figures.multiplier_by_axis import AXIS_WORDS
from analysis.forms.base import form_named
from analysis.headline import Multiplier, multiplier_of
from analysis.printed import printed_parameters
from analysis.report.choices import behind
from analysis.report.document import (
    Block,
    Bullets,
    Code,
    Inline,
    Line,
    Link,
    Paragraph,
    Picture,
    Row,
    Section,
    joined,
    line,
    row,
    run_link,
    table,
)
from analysis.report.facts import Facts
from analysis.wording import digits, interval_text, level_text, loss_text, multiplier_text, p_text

KIND_WORDS = {
    "irreducible": "irreducible loss E",
    "leave_one_size_out": "one size left out",
    "leave_largest_budget_out": "largest budget left out",
    "corrupted_cell": "one loss wrong (worst case)",
    "rounding": "losses rounded",
    "put_back": "runs left out by hand put back",
    "headline": "headline",
}


def multipliers_section(facts: Facts) -> Section:
    """Every row of multipliers.csv, refusals included."""
    level = level_text(facts.study.multipliers["level"].iloc[0])
    columns = (
        f"arm | estimator | compute | rates | >multiplier | >{level} interval | >pairs | holds for | verdict"
    )
    rows = (_multiplier_row(r) for _, r in facts.study.multipliers.iterrows())
    shown = table("Compute multipliers: all estimators and axes", columns, rows)
    return Section("Multipliers", "multipliers", (shown, *_behind(facts)))


def _multiplier_row(r: Any) -> Row:
    m = multiplier_of(r)
    return row(
        Code(m.variant),
        r["estimator"],
        AXIS_WORDS.get(r["compute_axis"], r["compute_axis"]),
        r["rate"],
        _linked(multiplier_text(m.value, m.lo, m.hi), m.variant, r["rate"], m.value),
        interval_text(m.lo, m.hi),
        m.n_pairs,
        "; ".join(_conditions(m)),
        m.reason or m.verdict,
    )


def _conditions(m: Multiplier) -> Iterator[str]:
    """What a multiplier holds for: its E, its compute, and whether its curve was read outside its data."""
    if m.irreducible:
        yield f"E {m.irreducible}"
    if m.at is not None:
        yield f"at {digits(m.at, 3)} FLOPs"
    if m.extrapolated:
        yield "extrapolated"


def _linked(words: str, arm: str, rate: str, value: float | None) -> Inline:
    return words if value is None else Link(words, behind(arm, rate))


def _behind(facts: Facts) -> Iterator[Section]:
    """The runs behind each arm's numbers."""
    wanted = [(arm, rate) for arm in facts.arms for rate in (MATCHED, TUNED)]
    for arm, rate in [*wanted, (facts.baseline, MATCHED), (facts.null_label, MATCHED)]:
        pairs = facts.pairs(arm, rate)
        blocks: list[Block] = [Paragraph(line("No runs: there is no number."))]
        if pairs is not None:
            blocks = [Paragraph(joined([run_link(spec_id) for spec_id in pairs.spec_ids]))]
            blocks += [Bullets(tuple(line(note) for note in pairs.notes))] if pairs.notes else []
        yield Section(f"Runs behind the {rate} multipliers of {arm}", behind(arm, rate), tuple(blocks))


def figures_section(figures: Sequence[Drawn], hovers: dict[str, str]) -> Section:
    """Every figure, or why it is not drawn."""
    blocks: list[Block] = [Picture(f.name, f.title, f.caption, hovers) for f in figures if f.exists]
    missing = tuple(line(f.title, ": ", f.missing, ".") for f in figures if not f.exists)
    if missing:
        blocks += [Paragraph(line("Not drawn:")), Bullets(missing)]
    return Section("Figures", "figures", tuple(blocks))


def pairs_section(facts: Facts) -> Section:
    """The differences that the headline averages."""
    rows = (
        row(
            Code(r["variant"]),
            r["size"],
            digits(r["budget"], 3),
            r["n_seeds"],
            loss_text(r["loss_baseline"]),
            loss_text(r["loss_variant"]),
            Link(loss_text(r["difference"]), behind(r["variant"], MATCHED)),
            multiplier_text(r["compute_multiplier"]),
            _runs(r["spec_ids"]),
        )
        for r in facts.fits("pairs")
    )
    columns = (
        "arm | size | >budget (FLOPs) | >seeds | >baseline | >arm | >difference | >multiplier of this size"
        " | runs"
    )
    shown = table("Paired losses, nats a token, seeds averaged", columns, rows)
    return Section("Pair by pair", "pairs", (shown,))


def laws_section(facts: Facts) -> Section:
    """Fitted laws with enough digits to draw them again."""
    rows = []
    for law in facts.laws:
        printed = printed_parameters(form_named(law.form), law) if law.usable else {}
        values = [
            f"{name} {value}" + (f" ± {digits(error, 2)}" if (error := law.standard_errors.get(name)) else "")
            for name, value in printed.items()
        ]
        rows.append(
            row(
                law.form,
                Code(law.group),
                ", ".join(values),
                law.n_points,
                digits(law.diagnostics.get("residual_sd"), 2),
                digits(law.diagnostics.get("starts_at_best"), 2),
                law.status.value + (f": {law.message}" if law.message else ""),
            )
        )
    columns = "form | arm | parameters ± s.e. | >points | >residual sd (ln loss) | >starts at best | status"
    return Section("Fitted laws", "laws", (table("Laws of each arm, compute in FLOPs", columns, rows),))


def residuals_section(facts: Facts) -> Section:
    """Measured minus predicted, cell by cell."""
    rows = (
        row(
            r["form"],
            Code(r["variant"]),
            r["size"],
            digits(r["compute"], 3),
            loss_text(r["loss"]),
            loss_text(r["predicted"]),
            loss_text(r["residual"]),
            _runs(r["spec_ids"]),
        )
        for r in facts.fits("residuals")
    )
    columns = "form | arm | size | >compute (FLOPs) | >loss | >predicted | >residual | runs"
    shown = table("Residual of each point of each law, nats", columns, rows)
    return Section("Residuals", "residuals", (shown,))


def _runs(spec_ids: Sequence[str]) -> Line:
    return joined([run_link(spec_id) for spec_id in spec_ids])


def holdout_section(facts: Facts) -> Section:
    """The largest budget predicted from the others."""
    rows = (
        row(
            Code(r["variant"]),
            r["form"],
            r["size"],
            loss_text(r["measured"]),
            loss_text(r["predicted"]),
            None if r["lo"] is None else f"[{loss_text(r['lo'])}, {loss_text(r['hi'])}]",
            {True: "inside", False: "outside", None: r["message"] or "no interval"}[r["inside"]],
            _runs(r["spec_ids"]),
        )
        for r in facts.fits("holdout")
    )
    columns = "arm | form | size | >measured | >predicted | >interval | result | runs"
    shown = table("Largest budget, predicted from the others", columns, rows)
    return Section("Held-out prediction", "holdout", (shown,))


def sensitivity_section(facts: Facts) -> Section:
    """How the headline moves."""
    rows = (
        row(
            Code(r["variant"]),
            KIND_WORDS.get(r["kind"], r["kind"]),
            r["value"],
            _linked(
                multiplier_text(r["compute_multiplier"], r["lo"], r["hi"]),
                r["variant"],
                MATCHED,
                r["compute_multiplier"],
            ),
            interval_text(r["lo"], r["hi"]),
            str(r["status"]).removeprefix("refused: "),
        )
        for r in facts.fits("sensitivity")
    )
    columns = "arm | what is changed | to | >multiplier | >interval | status"
    shown = table("The headline under other assumptions", columns, rows)
    return Section("Sensitivity", "sensitivity", (shown,))


def models_section(facts: Facts) -> Section:
    """Do the arms share a law: M0 to M3."""
    rows = (_model_row(r) for r in facts.fits("comparison"))
    columns = "arm | model | meaning | >AICc | test | >p | choice"
    shown = table("Models of the paired differences", columns, rows)
    return Section("Model comparison", "models", (shown,))


def _model_row(r: dict[str, Any]) -> Row:
    if r["model"] is None:
        return row(Code(r["variant"]), None, r["status"], None, None, None, None)
    chosen = "reported" if r["preferred"] else None
    return row(
        Code(r["variant"]), r["model"], r["meaning"], digits(r["aicc"]), r["test"], p_text(r["p"]), chosen
    )


def budget_section(facts: Facts) -> Section:
    """Where the uncertainty comes from."""
    rows = (
        row(
            Code(r["variant"]),
            r["source"],
            "not known" if r["sd_ln_m"] is None else digits(r["sd_ln_m"], 2),
            "yes" if r["in_interval"] else "no",
            r["how"],
        )
        for r in facts.fits("error_budget")
    )
    columns = "arm | source | >sd of ln m | in the interval | how it is measured"
    return Section("Error budget", "budget", (table("Sources of uncertainty", columns, rows),))


def noise_section(facts: Facts) -> Section:
    """Seed noise by arm, and how alike the arms of a pair are."""
    noise = facts.fits("noise")
    rows = []
    for arm, own in noise["by_arm"].items():
        pairs = noise["pairs"].get(arm, {"sd_difference": None, "correlation": None})
        paired = loss_text(pairs["sd_difference"], 5), digits(pairs["correlation"], 2)
        rows.append(row(Code(arm), loss_text(own["sd"], 5), own["dof"], *paired))
    columns = (
        "arm | >seed sd (nats) | >degrees of freedom | >sd of paired differences | >correlation in pairs"
    )
    shown = table("Spread of runs that differ in the seed alone", columns, rows)
    return Section("Seed noise", "noise", (shown,))
