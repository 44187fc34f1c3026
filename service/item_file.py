"""Items in files: CSV, JSONL and Parquet, read row by row with every defect named, and written whole or not at all.

The columns are those that `groundrec train --items` takes: item_id, title, description, and any other as an attribute;
in CSV attributes stay text. Rows are counted from 1: lines of a text file, header included; rows of a Parquet file.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.client.calls import Item
from service.errors import StartupError

SUFFIXES = (".csv", ".jsonl", ".parquet")
OWN = ("item_id", "title", "description", "attributes")


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row: the item, or the field at fault and why it cannot be an item."""

    number: int
    item: Item | None
    field: str = ""
    fault: str = ""


def read_items(path: Path) -> Iterator[FileRow]:
    """Every row of the file.

    Raises:
        StartupError: the file is missing or of an unknown kind, or its header has no item_id and title.
    """
    if path.suffix not in SUFFIXES:
        raise StartupError(f"{path}: the file must end in one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise StartupError(f"{path}: no such file")
    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    try:
        for number, row in readers[path.suffix](path):
            yield row if isinstance(row, FileRow) else _row(number, row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise StartupError(f"{path}: not readable: {error}") from None


def write_items(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as JSONL or Parquet (attributes as JSON text there); how many.

    Raises:
        StartupError: the file is of another kind, or Parquet is not installed.
    """
    temporary, written = path.with_name(f".{path.name}.tmp"), 0
    if path.suffix == ".parquet":
        table = [{**row, "attributes": json.dumps(row["attributes"], ensure_ascii=False)} for row in rows]
        arrow, parquet = _arrow(path)
        parquet.write_table(arrow.Table.from_pylist(table), temporary)
        written = len(table)
    elif path.suffix == ".jsonl":
        with temporary.open("w", encoding="utf-8") as lines:
            for row in rows:
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                written += 1
    else:
        raise StartupError(f"{path}: the file must end in .jsonl or .parquet")
    os.replace(temporary, path)
    return written


def _csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        _check_columns(path, reader.fieldnames or ())
        for row in reader:
            extra = row.pop(None, None)
            if extra is not None:
                yield reader.line_num, FileRow(reader.line_num, None, "row", "it has more cells than the header")
            else:
                yield reader.line_num, {name: cell for name, cell in row.items() if cell or name in OWN}


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield number, json.loads(line)
            except ValueError:
                yield number, FileRow(number, None, "row", "it is not JSON")


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    arrow, parquet = _arrow(path)
    try:
        file = parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise StartupError(f"{path}: not a Parquet file: {error}") from None
    _check_columns(path, file.schema_arrow.names)
    number = 0
    for batch in file.iter_batches(1000):
        for row in batch.to_pylist():
            number += 1
            yield number, {name: value for name, value in row.items() if value is not None}


def _check_columns(path: Path, names: Iterable[str]) -> None:
    for wanted in ("item_id", "title"):
        if wanted not in set(names):
            raise StartupError(f"{path}: there is no column {wanted}; the columns are {', '.join(names) or 'none'}")


def _row(number: int, row: Any) -> FileRow:
    if not isinstance(row, dict):
        return FileRow(number, None, "row", "it is not an object")
    for field in ("item_id", "title"):
        if row.get(field) in (None, ""):
            return FileRow(number, None, field, "it is missing or empty")
    item_id, title, description = row["item_id"], row["title"], row.get("description") or ""
    if isinstance(item_id, bool) or not isinstance(item_id, (str, int)):
        return FileRow(number, None, "item_id", "it must be text or a whole number")
    for field, text in (("title", title), ("description", description)):
        if not isinstance(text, str):
            return FileRow(number, None, field, "it must be text")
    attributes = row.get("attributes", {})
    if isinstance(attributes, str):
        attributes = _parsed(attributes)
    if not isinstance(attributes, dict):
        return FileRow(number, None, "attributes", "it must be an object")
    rest = {name: value for name, value in row.items() if name not in OWN and value is not None}
    return FileRow(number, Item(str(item_id), title, description, {**attributes, **rest}))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return None


def _arrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise StartupError(
            f"{path}: Parquet needs pyarrow; install the extra: pip install 'groundrec[train]'"
        ) from None
    return pyarrow, pyarrow.parquet
