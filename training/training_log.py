"""The log of fine-tuning: one CSV that a spreadsheet, pandas or the report reads while training goes on.

A row is a step (loss, gradient norm, speed, seconds spent) or the end of an epoch (mean loss, validation). A run that
was stopped repeats the steps since its last state: their rows take the place of the old ones, so that steps only rise.
It knows nothing of what is logged but the columns' names.
"""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from training.stages import write_whole

LOG = "finetune.csv"
VALID = "valid_ndcg@10"
COLUMNS = (
    "step",
    "epoch",
    "loss",
    "gradient_norm",
    "tokens_per_second",
    "wall_seconds",
    "cpu_seconds",
    "mean_loss",
    VALID,
)


class TrainingLog:
    """The log of one run, gone on with if it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = read_log(path)
        self._write()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; rows of a later step, or of the same step and kind, are from before a stop and go."""
        added = {name: str(value) for name, value in row.items()}
        kept = [old for old in self._rows if _order(old) < _order(added)]
        repeated, self._rows = len(kept) < len(self._rows), [*kept, added]
        if repeated:
            self._write()
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(_line([added.get(name, "") for name in COLUMNS]))

    def _write(self) -> None:
        lines = [COLUMNS, *([row.get(name, "") for name in COLUMNS] for row in self._rows)]
        write_whole(self._path, "".join(map(_line, lines)))


def read_log(path: Path) -> list[dict[str, str]]:
    """The rows without their empty cells; a last line that was cut short is left out, a missing file has none."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text("utf-8").rpartition("\n")
    return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(whole.splitlines())]


def _order(row: Mapping[str, str]) -> tuple[int, bool]:
    return int(row["step"]), VALID in row


def _line(cells: Iterable[str]) -> str:
    return ",".join(cells) + "\n"  # numbers and plain names, nothing to quote
