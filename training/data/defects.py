"""Defects of user data: what is wrong, in which file, row and field; counted, with the first few kept as examples.

It does not decide whether to go on: the reader refuses or skips as the user chose.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from training.errors import DataError

OnDefect = Literal["refuse", "skip"]
EXAMPLES_KEPT = 20
EXAMPLES_SHOWN = 5
HARMLESS = {"too_long_text"}


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect; ``row`` is the 1-based line of a text file or row of a Parquet file, 0 for the file as a whole."""

    file: str
    row: int
    field: str
    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}:{self.row}: {self.field}: {self.code} ({self.detail})"


@dataclass(slots=True)
class DefectReport:
    """Counts by code and the first examples."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Defect] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many defects there are."""
        return self.counts.total()

    def add(self, file: str, row: int, field: str, code: str, detail: str) -> None:
        """Count one defect."""
        self.counts[code] += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(Defect(file, row, field, code, detail))

    def refuse(self) -> None:
        """Refuse the data if it has defects that lose something.

        Raises:
            DataError: it has.
        """
        if self.counts.keys() - HARMLESS:
            raise DataError(f"{self.summary()}; mend the data, or leave such rows out with --on-defect skip")

    def summary(self) -> str:
        """Counts and the first examples in one line."""
        counts = ", ".join(f"{count} {code}" for code, count in self.counts.most_common())
        shown = "; ".join(str(defect) for defect in self.examples[:EXAMPLES_SHOWN])
        return f"{self.total} defects ({counts}): {shown}"
