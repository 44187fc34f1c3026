"""Hostile files cost the rows they spoil, never the others, and never end in a stray exception."""

from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from training.data.defects import DefectReport
from training.data.rows import Row, read_rows
from training.errors import DataError

REQUIRED = ("item_id", "title")


def read(path: Path, content: bytes) -> tuple[list[Row], list[tuple[int, str, str]]]:
    path.write_bytes(content)
    report = DefectReport()
    rows = list(read_rows(path, REQUIRED, report))
    assert all(defect.file == path.name for defect in report.examples)
    return rows, [(defect.row, defect.field, defect.code) for defect in report.examples]


def write_parquet(path: Path, **columns: Any) -> bytes:
    parquet.write_table(arrow.table(columns), path)
    return path.read_bytes()


def test_an_unclosed_quote_is_reported_where_it_opens(tmp_path: Path) -> None:
    rows, defects = read(tmp_path / "x.csv", b'item_id,title\na,Red\nb,"Blue\nc,Green\n')
    assert [row.values["item_id"] for row in rows] == ["a"]
    assert defects == [(3, "row", "wrong_type")]


def test_text_after_a_closing_quote_costs_its_row_only(tmp_path: Path) -> None:
    rows, defects = read(tmp_path / "x.csv", b'item_id,title\na,"Red" pen\nb,Blue\n')
    assert [(row.number, row.values["title"]) for row in rows] == [(3, "Blue")]
    assert defects == [(2, "row", "wrong_type")]


def test_a_cell_beyond_the_parsers_own_limit_is_read(tmp_path: Path) -> None:
    rows, defects = read(tmp_path / "x.csv", b"item_id,title\na," + b"x" * 200_000 + b"\n")
    assert len(rows[0].values["title"]) == 200_000
    assert defects == []


def test_rows_are_numbered_as_an_editor_shows_them(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "x.csv", b'item_id,title\r\n\r\na,"Red\r\npen"\r\nb,Blue\r\n')
    assert [(row.number, row.values["title"]) for row in rows] == [(3, "Red\r\npen"), (5, "Blue")]
    rows, _ = read(tmp_path / "x.jsonl", b'\n{"item_id": "a", "title": "Red"}\n\n{"item_id": "b", "title": "Blue"}')
    assert [row.number for row in rows] == [2, 4]
    rows, _ = read(tmp_path / "x.parquet", write_parquet(tmp_path / "x.parquet", item_id=["a", "b"], title=["x", "y"]))
    assert [row.number for row in rows] == [1, 2]


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    for suffix, content in (("csv", b"item_id,title\na,Red\n"), ("jsonl", b'{"item_id": "a", "title": "Red"}\n')):
        rows, defects = read(tmp_path / f"x.{suffix}", mark + content)
        assert ([row.values for row in rows], defects) == ([{"item_id": "a", "title": "Red"}], [])


def test_a_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    assert len(read(tmp_path / "X.CSV", b"item_id,title\na,Red\n")[0]) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"item_id,title\na,Red\nb,Bl\xffe\nc,Green\n"),
        ("x.jsonl", b'{"item_id":"a","title":"Red"}\n\n{"item_id":"b","title":"\\ud800"}\n{"item_id":"c","title":"x"}'),
        (
            "x.jsonl",
            b'{"item_id":"a","title":"Red"}\n\n{"item_id":"b","title":["\\udfff"]}\n{"item_id":"c","title":"x"}',
        ),
    ],
)
def test_text_that_utf_8_cannot_hold_costs_its_row_only(name: str, content: bytes, tmp_path: Path) -> None:
    rows, defects = read(tmp_path / name, content)
    assert [row.values["item_id"] for row in rows] == ["a", "c"]
    assert defects == [(3, "title", "not_utf8")]


def test_parquet_text_that_is_no_utf_8_costs_its_row_only(tmp_path: Path) -> None:
    titles = arrow.array([b"Red", b"Bl\xffe", b"Green"], arrow.binary()).view(arrow.string())
    rows, defects = read(
        tmp_path / "x.parquet", write_parquet(tmp_path / "x.parquet", item_id=["a", "b", "c"], title=titles)
    )
    assert [row.values for row in rows] == [{"item_id": "a", "title": "Red"}, {"item_id": "c", "title": "Green"}]
    assert defects == [(2, "title", "not_utf8")]


def test_parquet_times_that_python_cannot_hold_are_given_as_text(tmp_path: Path) -> None:
    times = arrow.array([1_700_000_000_123_456_789], arrow.timestamp("ns"))
    content = write_parquet(tmp_path / "x.parquet", item_id=["a"], title=["Red"], added=times)
    rows, defects = read(tmp_path / "x.parquet", content)
    assert rows[0].values["added"] == "2023-11-14 22:13:20.123456789"
    assert defects == []


def test_json_nested_without_end_is_a_defect(tmp_path: Path) -> None:
    rows, defects = read(tmp_path / "x.jsonl", b"[" * 200_000 + b'\n{"item_id": "a", "title": "Red"}\n')
    assert [row.number for row in rows] == [2]
    assert defects == [(1, "row", "bad_json")]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"item_id,title,title", "1: column title appears more than once"),
        (b"item_id,title,br\xffnd", "1: not_utf8: a column's name"),
        (b"item_id,name", "1: missing_column: title; found item_id, name"),
        (b"", "1: missing_column: item_id, title; found none"),
    ],
)
def test_a_header_that_cannot_be_trusted_is_refused(header: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        read(tmp_path / "x.csv", header + b"\n")


def test_a_parquet_file_without_a_required_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.parquet:1: missing_column: title; found item_id"):
        read(tmp_path / "x.parquet", write_parquet(tmp_path / "x.parquet", item_id=arrow.array([], arrow.string())))


def test_a_parquet_file_damaged_inside_is_refused_in_one_line(tmp_path: Path) -> None:
    numbers = [str(n) for n in range(5000)]
    content = bytearray(write_parquet(tmp_path / "x.parquet", item_id=numbers, title=numbers))
    content[10:4000] = bytes(3990)
    with pytest.raises(DataError, match=r"not a readable Parquet file: .+") as refusal:
        read(tmp_path / "x.parquet", bytes(content))
    assert "\n" not in str(refusal.value)
