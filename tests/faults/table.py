"""The table of the last results in a README: a drill's row is replaced when it is carried out again.

Each row has the commit and the machine's load (its mean over five minutes, the drill's own included): times are read
with it in mind.
"""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.faults.drill import Result
from tests.faults.figure import Figure
from tests.faults.stage import ROOT

START, END = "<!-- results -->", "<!-- end of results -->"
ROW = re.compile(r"\| (\d+) \|")


def write_table(path: Path, results: Sequence[Result]) -> None:
    """Put the results' rows between the two marks of the file.

    Raises:
        ValueError: the file lacks the marks.
    """
    text = path.read_text("utf-8")
    before, start, rest = text.partition(START)
    old, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{path}: expected the lines {START} and {END}")
    rows = {int(match[1]): line for line in old.splitlines() if (match := ROW.match(line))}
    rows |= {result.drill.number: row(result) for result in results}
    head = ["| # | drill | must show | measured | | commit, load |", "|---|---|---|---|---|---|"]
    lines = [_machine(), "", *head, *(rows[number] for number in sorted(rows))]
    path.write_text(f"{before}{start}\n" + "\n".join(lines) + f"\n{end}{after}", "utf-8")


def row(result: Result) -> str:
    """One drill."""
    drill = result.drill
    measured = "<br>".join(map(_measured, result.figures)) or _cell(result.failure)
    verdict = "ok" if result.ok else "short"
    where = f"{_commit()}, {os.getloadavg()[1]:.1f}"
    return f"| {drill.number} | `{drill.name}` | {drill.promise} | {measured} | {verdict} | {where} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[-200:]


def _machine() -> str:
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    name = model[1] if model else platform.machine()
    return f"`python -m tests.faults all --table FILE` on {os.cpu_count()} cores ({name}), shared with other work:"


def _commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "no commit"


def _measured(figure: Figure) -> str:
    mark = "" if figure.holds() else " **short**"
    value, limit = (
        f"{number:.0f}" if float(number).is_integer() else f"{number:.3g}" for number in (figure.value, figure.limit)
    )
    return f"{figure.name} {value}{figure.unit} ({figure.rule} {limit}{figure.unit}){mark}"
