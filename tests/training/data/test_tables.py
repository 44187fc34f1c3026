"""A user's own tables: three formats mean the same, and every defect is named by file, row and field."""

import csv
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.dataset import Dataset
from training.data.sources import load
from training.data.tables import parse_timestamp, read_tables
from training.errors import DataError

Rows = list[dict[str, Any]]
ITEMS: Rows = [
    {"item_id": "a", "title": "Red pen", "brand": "Bic"},
    {"item_id": "b", "title": "Blue pen", "brand": "Pilot"},
]
EVENTS: Rows = [
    {"user_id": "u", "item_id": "b", "timestamp": 20},
    {"user_id": "u", "item_id": "a", "timestamp": 10},
    {"user_id": "v", "item_id": "a", "timestamp": 5},
]


def write_csv(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: Rows) -> Path:
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def read(tmp_path: Path, items: Rows = ITEMS, events: Rows = EVENTS, kind: str = "csv", **options: Any) -> Dataset:
    write = WRITERS[kind]
    return read_tables(write(tmp_path / f"items.{kind}", items), write(tmp_path / f"events.{kind}", events), **options)


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_items_attributes_and_time_order(kind: str, tmp_path: Path) -> None:
    dataset = read(tmp_path, kind=kind)
    assert [(item.item_id, item.title, dict(item.attributes)) for item in dataset.items] == [
        ("a", "Red pen", {"brand": "Bic"}),
        ("b", "Blue pen", {"brand": "Pilot"}),
    ]
    assert dataset.sequences == {"u": (0, 1), "v": (0,)}
    assert dataset.timestamps == {"u": (10.0, 20.0), "v": (5.0,)}
    assert dataset.defects.total == 0


@pytest.mark.parametrize("kind", WRITERS)
def test_events_of_equal_time_keep_the_order_of_the_file(kind: str, tmp_path: Path) -> None:
    times = {"b": "1970-01-01T00:00:10Z", "a": "10", "c": "10000"}
    items = [{"item_id": name, "title": name} for name in "abc"]
    events = [{"user_id": "u", "item_id": name, "timestamp": times[name]} for name in "cba"]
    dataset = read(tmp_path, items, events, kind)
    assert dataset.sequences == {"u": (1, 0, 2)}
    assert dataset.timestamps == {"u": (10.0, 10.0, 10_000.0)}


words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(
    titles=st.lists(st.tuples(words, words, words), min_size=1, max_size=6),
    times=st.lists(st.integers(0, 10**9), min_size=1, max_size=9),
)
def test_csv_jsonl_and_parquet_of_the_same_rows_are_the_same_data(
    titles: list[tuple[str, str, str]], times: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = ("title", "description", "brand")
    items = [{"item_id": f"i{n}", **dict(zip(names, texts, strict=True))} for n, texts in enumerate(titles)]
    events = [{"user_id": f"u{n % 2}", "item_id": f"i{n % len(items)}", "timestamp": t} for n, t in enumerate(times)]
    folder = tmp_path_factory.mktemp("tables")
    read_back = [read(folder, items, events, kind) for kind in WRITERS]
    assert [item.title for item in read_back[0].items] == [title for title, _, _ in titles]
    assert len({dataset.fingerprint for dataset in read_back}) == 1


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("items", "events", "where"),
    [
        ([*ITEMS, ITEMS[0]], EVENTS, "items.{kind}:{third}: item_id: duplicate_id"),
        ([ITEMS[0], ITEMS[1] | {"title": " "}], EVENTS[1:], "items.{kind}:{second}: title: empty_text"),
        ([ITEMS[0], ITEMS[1], ITEMS[1] | {"item_id": " "}], EVENTS, "items.{kind}:{third}: item_id: empty_id"),
        (ITEMS, [EVENTS[0] | {"item_id": "zz"}], "events.{kind}:{first}: item_id: unknown_item"),
        (ITEMS, [EVENTS[0] | {"timestamp": "soon"}], "events.{kind}:{first}: timestamp: bad_timestamp"),
        (ITEMS, [EVENTS[0] | {"user_id": ""}], "events.{kind}:{first}: user_id: empty_id"),
    ],
)
def test_a_defect_is_refused_with_file_row_and_field(
    kind: str, items: Rows, events: Rows, where: str, tmp_path: Path
) -> None:
    lines = dict(zip(("first", "second", "third"), (2, 3, 4) if kind == "csv" else (1, 2, 3), strict=True))
    with pytest.raises(DataError) as refusal:
        read(tmp_path, items, events, kind)
    assert where.format(kind=kind, **lines) in str(refusal.value)
    assert "--on-defect skip" in str(refusal.value)


def test_skipping_leaves_the_defective_rows_out_and_counts_them(tmp_path: Path) -> None:
    events = [
        *EVENTS,
        {"user_id": "u", "item_id": "zz", "timestamp": 1},
        {"user_id": "u", "item_id": "a", "timestamp": ""},
    ]
    dataset = read(tmp_path, ITEMS, events, on_defect="skip")
    assert dataset.num_interactions == 3
    assert dataset.defects.counts == {"unknown_item": 1, "bad_timestamp": 1}


@pytest.mark.parametrize("on_defect", ["refuse", "skip"])
def test_a_missing_column_is_refused_whatever_was_asked(on_defect: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"events\.csv:1: missing_column: timestamp"):
        read(tmp_path, ITEMS, [{"user_id": "u", "item_id": "a"}], on_defect=on_defect)


def test_a_byte_that_is_no_utf8_costs_its_row_and_is_found(tmp_path: Path) -> None:
    events = write_csv(tmp_path / "events.csv", EVENTS)
    (tmp_path / "items.csv").write_bytes(b'item_id,title\na,"Red\npen"\nb,Bl\xffe\nc,Green\n')
    with pytest.raises(DataError, match=r"items\.csv:4: title: not_utf8"):
        read_tables(tmp_path / "items.csv", events)
    (tmp_path / "items.jsonl").write_bytes(b'{"item_id": "a", "title": "x"}\n{"item_id": "b", "title": "\xff"}\n')
    with pytest.raises(DataError, match=r"items\.jsonl:2: row: not_utf8"):
        read_tables(tmp_path / "items.jsonl", events)


@pytest.mark.parametrize(
    ("line", "code"), [("{", "bad_json"), ("[1]", "bad_json"), ('{"item_id": "c"}', "missing_column")]
)
def test_a_broken_json_line_is_found(line: str, code: str, tmp_path: Path) -> None:
    items = write_jsonl(tmp_path / "items.jsonl", ITEMS)
    items.write_text(items.read_text() + line + "\n")
    with pytest.raises(DataError, match=rf"items\.jsonl:3: .*{code}"):
        read_tables(items, write_csv(tmp_path / "events.csv", EVENTS))


def test_values_of_the_wrong_type_are_found(tmp_path: Path) -> None:
    for kind in ("jsonl", "parquet"):
        with pytest.raises(DataError, match=rf"items\.{kind}:1: title: wrong_type"):
            read(tmp_path, [{"item_id": "a", "title": 5}], EVENTS, kind)
        with pytest.raises(DataError, match=rf"items\.{kind}:1: item_id: wrong_type \(float\)"):
            read(tmp_path, [{"item_id": 1.5, "title": "x"}], EVENTS, kind)
    with pytest.raises(DataError, match=r"items\.parquet:1: item_id: wrong_type \(bytes\)"):
        read(tmp_path, [{"item_id": b"a", "title": "x"}], EVENTS, "parquet")
    (tmp_path / "items.csv").write_text("item_id,title\na,b,c\n")
    with pytest.raises(DataError, match=r"items\.csv:2: row: wrong_type \(3 cells under 2 columns\)"):
        read_tables(tmp_path / "items.csv", write_csv(tmp_path / "events.csv", EVENTS))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("length", [20_001, 100_000, 200_000])
def test_a_text_too_long_is_cut_and_said_so_but_not_refused(kind: str, length: int, tmp_path: Path) -> None:
    items = [ITEMS[0] | {"description": "x" * length}, ITEMS[1] | {"description": "x" * 20_000}]
    dataset = read(tmp_path, items, kind=kind)
    assert [len(item.description) for item in dataset.items] == [20_000, 20_000]
    assert dataset.defects.counts == {"too_long_text": 1}


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    events = write_csv(tmp_path / "events.csv", EVENTS)
    with pytest.raises(DataError, match=r"none\.csv: no such file"):
        read_tables(tmp_path / "none.csv", events)
    (tmp_path / "items.xlsx").write_text("")
    with pytest.raises(DataError, match=r"items\.xlsx: unknown kind \.xlsx; use one of \.csv, \.jsonl, \.parquet"):
        read_tables(tmp_path / "items.xlsx", events)
    (tmp_path / "items.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_tables(tmp_path / "items.parquet", events)


def test_nothing_usable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"events\.csv: no usable rows"):
        read(tmp_path, ITEMS, [EVENTS[0] | {"item_id": "zz"}], on_defect="skip")


@pytest.mark.parametrize(
    "value", [1_700_000_000, "1700000000", 1_700_000_000_000, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20",
              "2023-11-14T23:13:20+01:00", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
              datetime(2023, 11, 14, 22, 13, 20)]
)  # fmt: skip
def test_times_are_seconds_milliseconds_or_iso(value: Any) -> None:
    assert parse_timestamp(value) == 1_700_000_000


@pytest.mark.parametrize("value", ["", "soon", None, "nan", "inf", [], 1e18, True, 10**400])
def test_what_is_no_time_is_none(value: Any) -> None:
    assert parse_timestamp(value) is None


def test_a_date_is_its_first_second_in_utc() -> None:
    assert parse_timestamp(date(2023, 11, 14)) == parse_timestamp("2023-11-14") == 1_699_920_000


def test_attributes_keep_what_says_something(tmp_path: Path) -> None:
    said = {"price": 0, "new": True, "tags": ["x", None], "size": 10**400}
    unsaid: dict[str, Any] = {"none": None, "nan": float("nan"), "empty": "", "no_tags": [], "": "index"}
    dataset = read(tmp_path, [ITEMS[0] | said | unsaid], EVENTS[1:], "jsonl")
    kept = {"brand": "Bic", "price": 0.0, "new": "true", "tags": ("x",), "size": str(10**400)}
    assert dataset.items[0].attributes == kept


@pytest.mark.parametrize("on_defect", ["refuse", "skip"])
def test_a_key_missing_in_every_json_line_is_refused_whatever_was_asked(on_defect: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"events\.jsonl:1: timestamp: missing_column"):
        read(tmp_path, ITEMS, [{"user_id": "u", "item_id": "a"}], "jsonl", on_defect=on_defect)


def test_an_unknown_source_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose movielens-100k, amazon:FOLDER, minionerec:FOLDER or tables"):
        load("netflix", cache_dir=tmp_path)
    with pytest.raises(DataError, match="needs --items FILE and --interactions FILE"):
        load("tables", cache_dir=tmp_path)
