"""MiniOneRec's split of Amazon review data: ``valid.csv``, ``test.csv`` and ``NAME.item.json`` of one folder.

A row says which (at most ten) items came before one item. The rows of a user overlap, so they are laid over each other
to one sequence; validation rows come before test rows in time. Where the training rows are missing, what came before
the first row's history is unknown, so figures on the rebuilt data are lower bounds and not those published on the
split. The files carry no times, so the position in the sequence stands in for the timestamp.
"""

import ast
import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from training.data.dataset import CatalogItem, Dataset
from training.errors import DataError

LICENSE_NOTE = "Amazon review data (McAuley, UCSD), distributed for research."
FILES = ("train.csv", "valid.csv", "test.csv")


def read_minionerec(folder: Path) -> Dataset:
    """Read the rows there are; an item's number in the files, as text, is its ``item_id``.

    Raises:
        DataError: no rows, not of the expected form, or a row names an item that is not there.
    """
    items = _items(folder)
    sequences: dict[str, list[int]] = {}
    for user, row in _rows(folder):
        if not all(0 <= item < len(items) for item in row):
            raise DataError(f"{folder}: user {user!r} met an item outside the {len(items)} items, counted from 0")
        lay_over(sequences.setdefault(user, []), row)
    if not sequences:
        raise DataError(f"{folder}: expected rows in {', '.join(FILES)}, found none")
    timestamps = {user: tuple(float(n) for n in range(len(sequence))) for user, sequence in sequences.items()}
    met = {user: tuple(sequence) for user, sequence in sequences.items()}
    return Dataset(f"minionerec-{folder.name}", items, met, timestamps, LICENSE_NOTE)


def lay_over(sequence: list[int], row: Sequence[int]) -> None:
    """Append to ``sequence`` what of ``row`` goes beyond it: all after the longest overlap of end and start."""
    longest = min(len(sequence), len(row))
    overlap = next(n for n in range(longest, -1, -1) if sequence[len(sequence) - n :] == list(row[:n]))
    sequence.extend(row[overlap:])


def _rows(folder: Path) -> Iterator[tuple[str, list[int]]]:
    for path in (folder / name for name in FILES):
        if not path.exists():
            continue
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    yield row["user_id"], [*map(int, ast.literal_eval(row["history_item_id"])), int(row["item_id"])]
                except (KeyError, SyntaxError, TypeError, ValueError) as error:
                    raise DataError(f"{path}: line {number}: not in the expected form: {error!r}") from error


def _items(folder: Path) -> tuple[CatalogItem, ...]:
    paths = sorted(folder.glob("*.item.json"))
    if len(paths) != 1:
        raise DataError(f"{folder}: expected one *.item.json, found {len(paths)}")
    try:
        rows: dict[str, dict[str, Any]] = json.loads(paths[0].read_bytes())
        return tuple(
            CatalogItem(str(n), str(rows[str(n)]["title"]), _text(rows[str(n)].get("description", "")))
            for n in range(len(rows))
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{paths[0]}: not in the expected form: {error!r}") from error


def _text(description: str) -> str:
    """Descriptions are Python lists of paragraphs, written as text."""
    try:
        paragraphs = ast.literal_eval(description)
    except (SyntaxError, ValueError):
        return description
    return " ".join(map(str, paragraphs)) if isinstance(paragraphs, list) else description
