"""Rows of a CSV, JSONL or Parquet file as dictionaries, each with the line or row an editor shows.

Text is decoded row by row, so one bad byte costs one row and is reported where it lies. It knows nothing of what the
columns mean.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from training.data.defects import DefectReport
from training.errors import DataError

SUFFIXES = (".csv", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    """One row's values and its 1-based place."""

    number: int
    values: dict[str, Any]


def read_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    """Stream the rows of ``path``; rows that cannot be decoded are reported and left out.

    Raises:
        DataError: the file is missing, of an unknown kind, unreadable or lacks a required column.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise DataError(f"{path}: unknown kind {path.suffix or '(none)'}; use one of {', '.join(SUFFIXES)}")
    return readers[path.suffix](path, required, report)


def _check_columns(path: Path, columns: list[str], required: tuple[str, ...]) -> None:
    missing = [name for name in required if name not in columns]
    if missing:
        raise DataError(f"{path}:1: missing_column: {', '.join(missing)}; found {', '.join(columns) or 'none'}")


def _csv_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        header = [name.lstrip("\ufeff").strip() for name in header]
        _check_columns(path, header, required)
        line = reader.line_num + 1
        for cells in reader:
            number, line = line, reader.line_num + 1
            if not cells:
                continue
            if len(cells) != len(header):
                report.add(path.name, number, "row", "wrong_type", f"{len(cells)} cells under {len(header)} columns")
            elif _decodable(path, number, dict(zip(header, cells, strict=True)), report):
                yield Row(number, dict(zip(header, cells, strict=True)))


def _jsonl_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                report.add(path.name, number, "row", "not_utf8", f"byte {error.start}")
                continue
            except ValueError as error:
                report.add(path.name, number, "row", "bad_json", str(error))
                continue
            if not isinstance(values, dict):
                report.add(path.name, number, "row", "bad_json", "not an object")
                continue
            absent = [name for name in required if name not in values]
            if absent:
                report.add(path.name, number, absent[0], "missing_column", "this row has no such key")
                continue
            yield Row(number, values)


def _parquet_rows(path: Path, required: tuple[str, ...], report: DefectReport) -> Iterator[Row]:
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error
    _check_columns(path, list(file.schema_arrow.names), required)
    number = 0
    for batch in file.iter_batches():
        for values in batch.to_pylist():
            number += 1
            yield Row(number, values)


def _decodable(path: Path, number: int, values: dict[str, str], report: DefectReport) -> bool:
    for name, text in values.items():
        if any("\udc80" <= character <= "\udcff" for character in text):
            report.add(path.name, number, name, "not_utf8", "bytes that are no UTF-8")
            return False
    return True
