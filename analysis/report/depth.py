"""The section on dynamics: magnitudes over depth in numbers, and alarms."""

from analysis.dynamics import (
    DYNAMICS_FOLDER,
    SPIKE,
    DepthRun,
    alarms,
    depth_runs,
    entropy_shares,
    every_depth_run,
)
from analysis.report.document import Block, Bullets, Code, Paragraph, Row, Section, line, row, run_link, table
from analysis.report.facts import Facts
from analysis.wording import digits

COLUMNS = (
    "arm | size | run | >output, largest | >largest / smallest | >gradient, largest / smallest "
    "| >entropy, share of ln n | >weight of the embedding"
)


def depth_section(facts: Facts) -> Section:
    """One row an arm; then what is out of order."""
    runs = depth_runs(facts.study)
    if not runs:
        blocks: list[Block] = [Paragraph(line(f"No run of this study has a file in {DYNAMICS_FOLDER}/."))]
        return Section("Dynamics", "dynamics", tuple(blocks))
    blocks = [table("Over depth at the last step; one run an arm", COLUMNS, map(_row, runs))]
    every = every_depth_run(facts.study)
    found = list(alarms(every))
    if found:
        blocks.append(Bullets(tuple(line(alarm, ".") for alarm in found)))
    else:
        blocks.append(
            Paragraph(
                line(
                    f"In {len(every)} runs no sublayer is beyond {SPIKE:g} times the median of its "
                    "neighbours at a recorded step, and no read has collapsed."
                )
            )
        )
    return Section("Dynamics", "dynamics", tuple(blocks))


def _row(run: DepthRun) -> Row:
    output = run.at_end("output").groupby("site")["value"].mean()
    gradient = run.at_end("gradient").groupby("site")["value"].mean()
    weights, shares = run.at_end("weight"), entropy_shares(run)
    embedding = weights[weights["source"] == 0]["value"]
    return row(
        Code(run.variant),
        run.size,
        run_link(run.spec_id),
        digits(output.max(), 3) if len(output) else None,
        digits(output.max() / output.min(), 3) if len(output) and output.min() > 0 else None,
        digits(gradient.max() / gradient.min(), 3) if len(gradient) and gradient.min() > 0 else None,
        digits(shares.mean(), 2) if len(shares) else None,
        digits(embedding.mean(), 2) if run.mixes else None,
    )
