"""Rows of a CSV, JSONL or Parquet file as dictionaries, each with the line or row an editor shows.

Text is decoded row by row, so one bad byte costs one row and is reported where it lies. It knows nothing of what the
columns mean.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as arrow
import pyarrow.parquet as parquet

from training.data.defects import DefectReport
from training.errors import DataError

SUFFIXES = (".csv", ".jsonl", ".parquet")
MAX_CELL_CHARS = 1 << 24  # a quote that is never closed must not take the rest of a huge file into memory
_UNDECODABLE = "\udcff"  # stands for bytes that are no UTF-8, as surrogateescape would have it


@dataclass(frozen=True, slots=True)
class Row:
    """One row's values and its 1-based place."""

    number: int
    values: dict[str, Any]


def read_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    """Stream the rows of ``path``; rows that cannot be decoded are reported and left out.

    Raises:
        DataError: the file is missing, of an unknown kind, unreadable, lacks a required column or has one twice.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise DataError(f"{path}: unknown kind {path.suffix or '(none)'}; use one of {', '.join(SUFFIXES)}")
    return (row for row in readers[suffix](path, required, report) if _decodable(path, row, report))


def _check_columns(path: Path, columns: list[str], required: tuple[str, ...]) -> None:
    if not all(_is_unicode(name) for name in columns):
        raise DataError(f"{path}:1: not_utf8: a column's name is no UTF-8; save the file as UTF-8")
    missing = [name for name in required if name not in columns]
    if missing:
        raise DataError(f"{path}:1: missing_column: {', '.join(missing)}; found {', '.join(columns) or 'none'}")
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise DataError(f"{path}:1: column {', '.join(twice)} appears more than once; rename or drop one")


def _csv_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        records = _csv_records(path, file, report)
        _, header = next(records, (1, []))
        header = [name.lstrip("\ufeff").strip() for name in header]
        _check_columns(path, header, required)
        for number, cells in records:
            if len(cells) == len(header):
                yield Row(number, dict(zip(header, cells, strict=True)))
            else:
                report.add(path.name, number, "row", "wrong_type", f"{len(cells)} cells under {len(header)} columns")


def _csv_records(path: Path, file: TextIO, report: DefectReport) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_CELL_CHARS)
    # Not strict, the parser takes all that follows an unclosed quote for one cell, silently.
    reader = csv.reader(file, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report.add(path.name, number, "row", "wrong_type", f"no CSV: {error}")
            continue
        if cells:
            yield number, cells


def _jsonl_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            values = _json_object(path, number, line, report) if line.strip() else None
            if values is None:
                continue
            absent = [name for name in required if name not in values]
            if absent:
                report.add(path.name, number, absent[0], "missing_column", "this row has no such key")
            else:
                yield Row(number, values)


def _json_object(path: Path, number: int, line: bytes, report: DefectReport) -> dict[str, Any] | None:
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        report.add(path.name, number, "row", "not_utf8", f"byte {error.start}")
        return None
    except (ValueError, RecursionError) as error:
        report.add(path.name, number, "row", "bad_json", str(error))
        return None
    if isinstance(values, dict):
        return values
    report.add(path.name, number, "row", "bad_json", "not an object")
    return None


def _parquet_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    number = 0
    for batch in _parquet_batches(path, required):
        for values in _batch_rows(batch):
            number += 1
            yield Row(number, values)


def _parquet_batches(path: Path, required: tuple[str, ...]) -> Iterator[arrow.RecordBatch]:
    try:
        file = parquet.ParquetFile(path)
        _check_columns(path, list(file.schema_arrow.names), required)
        yield from file.iter_batches()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not a readable Parquet file: {reason}") from error


def _batch_rows(batch: arrow.RecordBatch) -> Iterator[dict[str, Any]]:
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for number in range(batch.num_rows):
            yield {
                name: _scalar(column[number]) for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }


def _scalar(value: arrow.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return _UNDECODABLE
    except (ValueError, OverflowError):  # Python's times know neither nanoseconds nor years after 9999
        return value.cast(arrow.string()).as_py()


def _decodable(path: Path, row: Row, report: DefectReport) -> bool:
    for name, value in row.values.items():
        if not (_is_unicode(name) and _is_unicode(value)):
            report.add(path.name, row.number, name, "not_utf8", "holds what UTF-8 cannot")
            return False
    return True


def _is_unicode(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_unicode(entry) for entry in value)
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True
