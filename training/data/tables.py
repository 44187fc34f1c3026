"""The user's own data: an items table and an interactions table, as CSV, JSONL or Parquet.

Items: ``item_id`` and ``title`` are required, ``description`` is optional, every further column becomes an attribute.
Interactions: ``user_id``, ``item_id`` and ``timestamp`` (Unix seconds or milliseconds, or ISO-8601) are required, other
columns are ignored. Every defect is reported with file, row and field, and either refused or skipped as the user chose.
It does not guess types: a number in CSV is text to it, as an attribute.
"""

import math
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from training.data.dataset import AttributeValue, CatalogItem, Dataset, Interaction, in_time_order
from training.data.defects import DefectReport, OnDefect
from training.data.rows import Row, read_rows
from training.errors import DataError

KNOWN_COLUMNS = frozenset({"item_id", "title", "description"})
MAX_TEXT_CHARS = 20_000
MILLISECONDS_FROM = 1e11  # as seconds this is the year 5138, so a larger number must be milliseconds


def read_tables(
    items_path: Path, interactions_path: Path, *, on_defect: OnDefect = "refuse", name: str | None = None
) -> Dataset:
    """Read both tables.

    Raises:
        DataError: a file cannot be read, a column is missing, nothing usable is left, or there are defects and
            ``on_defect`` is "refuse".
    """
    report = DefectReport()
    items = _read_items(items_path, report)
    interactions = _read_interactions(interactions_path, {item.item_id: n for n, item in enumerate(items)}, report)
    if on_defect == "refuse":
        report.refuse()
    if not items or not interactions:
        empty = items_path if not items else interactions_path
        raise DataError(f"{empty}: no usable rows. {report.summary() if report.total else 'The file is empty'}")
    sequences, timestamps = in_time_order(interactions)
    return Dataset(name or items_path.stem, tuple(items), sequences, timestamps, "the user's own data", report)


def _read_items(path: Path, report: DefectReport) -> list[CatalogItem]:
    items: dict[str, CatalogItem] = {}
    for row in read_rows(path, ("item_id", "title"), report):
        item = _item(path.name, row, report)
        if item is None:
            continue
        if item.item_id in items:
            report.add(path.name, row.number, "item_id", "duplicate_id", repr(item.item_id[:50]))
        else:
            items[item.item_id] = item
    return list(items.values())


def _item(file: str, row: Row, report: DefectReport) -> CatalogItem | None:
    item_id = _identifier(file, row, "item_id", report)
    title, description = (_text(file, row, name, report) for name in ("title", "description"))
    if item_id is None or title is None or description is None:
        return None
    if not title.strip():
        report.add(file, row.number, "title", "empty_text", "an item needs a title to be grounded")
        return None
    return CatalogItem(item_id, title, description, _attributes(row))


def _read_interactions(path: Path, numbers: dict[str, int], report: DefectReport) -> list[Interaction]:
    interactions = []
    for row in read_rows(path, ("user_id", "item_id", "timestamp"), report):
        user_id, item_id = (_identifier(path.name, row, name, report) for name in ("user_id", "item_id"))
        if user_id is None or item_id is None:
            continue
        timestamp = parse_timestamp(row.values["timestamp"])
        if item_id not in numbers:
            report.add(path.name, row.number, "item_id", "unknown_item", repr(item_id[:50]))
        elif timestamp is None:
            report.add(path.name, row.number, "timestamp", "bad_timestamp", repr(str(row.values["timestamp"])[:50]))
        else:
            interactions.append(Interaction(user_id, numbers[item_id], timestamp))
    return interactions


def parse_timestamp(value: Any) -> float | None:
    """Unix seconds of a number (seconds or milliseconds), ISO-8601 text, a datetime or date; None for all else.

    A time without a zone is taken as UTC.
    """
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC).timestamp()
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _iso_timestamp(value)
    except OverflowError:
        return None
    if not abs(number) < 1e15:
        return None
    return number / 1000 if abs(number) >= MILLISECONDS_FROM else number


def _iso_timestamp(value: Any) -> float | None:
    try:
        return parse_timestamp(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return None


def _identifier(file: str, row: Row, name: str, report: DefectReport) -> str | None:
    value = row.values[name]
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        report.add(file, row.number, name, "empty_id" if value is None else "wrong_type", f"{type(value).__name__}")
        return None
    text = str(value).strip()
    if not text:
        report.add(file, row.number, name, "empty_id", "no identifier")
        return None
    return text


def _text(file: str, row: Row, name: str, report: DefectReport) -> str | None:
    value = row.values.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        report.add(file, row.number, name, "wrong_type", f"{type(value).__name__} instead of text")
        return None
    if len(value) > MAX_TEXT_CHARS:
        report.add(file, row.number, name, "too_long_text", f"{len(value)} characters, cut to {MAX_TEXT_CHARS}")
    return value[:MAX_TEXT_CHARS]


def _attributes(row: Row) -> dict[str, AttributeValue]:
    """Whatever else a row says; a column without a name (an index that a table was saved with) says nothing."""
    made = {key: _attribute(raw) for key, raw in row.values.items() if key and key not in KNOWN_COLUMNS}
    return {key: value for key, value in made.items() if value not in ("", ())}


def _attribute(value: Any) -> AttributeValue:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, list):
        return tuple(str(entry) for entry in value if entry is not None)
    return str(value)


def _number(value: float) -> AttributeValue:
    try:
        return float(value) if math.isfinite(value) else ""
    except OverflowError:
        return str(value)
