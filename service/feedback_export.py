"""Writes the feedback log as a table that `groundrec train --interactions` reads: one row an event.

An event that was recorded twice is written once, by its ``event_id``. Events whose recommendation is known get its
place and model; kinds of weight 0 are left out unless asked for, because training takes every row for an interaction.
The file appears whole or not at all.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.errors import StartupError
from service.stores.feedback import FeedbackEvent, FeedbackLog, ServedRecommendation

COLUMNS = (
    "user_id",
    "item_id",
    "timestamp",
    "event",
    "weight",
    "event_id",
    "recommendation_id",
    "model_version",
    "rank",
)
SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Exported:
    """How many rows were written, and how many events were left out as repeated or of weight 0."""

    rows: int
    repeated: int
    weightless: int


async def export_feedback(log: FeedbackLog, path: Path, *, everything: bool = False) -> Exported:
    """Write all events that are kept, oldest first.

    Raises:
        StartupError: the file's kind is unknown, its folder is missing or Parquet is not installed.
        StorageError: Redis is in trouble; nothing was written.
    """
    write = _writer(path)
    served = {entry.recommendation_id: entry async for entry in log.served()}
    table = _Table(served, everything)
    rows = [row async for row in table.rows(log.events())]
    temporary = path.with_name(f".{path.name}.tmp")
    write(temporary, rows)
    os.replace(temporary, path)
    return Exported(len(rows), table.repeated, table.weightless)


class _Table:
    """Joins events with what was served."""

    def __init__(self, served: dict[str, ServedRecommendation], everything: bool) -> None:
        self._served, self._everything = served, everything
        self._seen: set[tuple[str, str]] = set()
        self.repeated = self.weightless = 0

    async def rows(self, events: AsyncIterator[FeedbackEvent]) -> AsyncIterator[dict[str, Any]]:
        async for event in events:
            if event.event_id is not None and (event.user_id, event.event_id) in self._seen:
                self.repeated += 1
            elif event.weight <= 0 and not self._everything:
                self.weightless += 1
            else:
                if event.event_id is not None:
                    self._seen.add((event.user_id, event.event_id))
                yield self._row(event)

    def _row(self, event: FeedbackEvent) -> dict[str, Any]:
        shown = self._served.get(event.recommendation_id or "")
        rank = shown.item_ids.index(event.item_id) + 1 if shown and event.item_id in shown.item_ids else None
        row = {name: getattr(event, name) for name in COLUMNS[:7]}
        return row | {"model_version": shown.model_version if shown else None, "rank": rank}


def _writer(path: Path) -> Any:
    if path.suffix not in SUFFIXES:
        raise StartupError(f"--out {path}: unknown kind; use one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise StartupError(f"--out {path}: there is no folder {path.parent}")
    if path.suffix == ".jsonl":
        return _write_jsonl
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise StartupError(f"--out {path}: Parquet needs the extra `train`; or write .jsonl") from None

    def write(target: Path, rows: list[dict[str, Any]]) -> None:
        texts = {name: pyarrow.string() for name in COLUMNS}
        types = {**texts, "timestamp": pyarrow.float64(), "weight": pyarrow.float64(), "rank": pyarrow.int64()}
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(list(types.items()))), target)

    return write


def _write_jsonl(target: Path, rows: list[dict[str, Any]]) -> None:
    with target.open("w", encoding="utf-8") as file:
        file.writelines(_lines(rows))


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False) + "\n"
