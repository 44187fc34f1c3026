from pathlib import Path

import pytest

from service.errors import StartupError
from service.history_file import parse_history, read_histories
from service.stores.base import HistoryEvent


async def test_histories_are_read_line_by_line_with_progress(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text('{"user_id": "1", "items": [["a", 5], ["b", 6.5]]}\n\n{"user_id": "2", "items": []}\n')
    told: list[int] = []
    found = [history async for history in read_histories(file, told.append)]
    assert found == [("1", [HistoryEvent("a", 5.0), HistoryEvent("b", 6.5)]), ("2", [])]
    assert sum(told) == file.stat().st_size


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{", "h.jsonl:3: not"),
        (b"[]", "h.jsonl:3: not"),
        (b'{"items": []}', "h.jsonl:3: field 'user_id' is missing"),
        (b'{"user_id": "1", "items": [["a"]]}', "h.jsonl:3: not"),
        (b'{"user_id": "1", "items": [["a", "noon"]]}', "h.jsonl:3: not"),
        (b'{"user_id": "1", "items": [["a", NaN]]}', "h.jsonl:3: a time must be a finite number"),
        (b'{"user_id": 1, "items": []}', "h.jsonl:3: user_id and item ids must be strings"),
        (b'{"user_id": "1", "items": [[7, 1]]}', "h.jsonl:3: user_id and item ids must be strings"),
        (b'{"user_id": "\xff", "items": []}', "h.jsonl:3: not"),
    ],
)
def test_a_defect_names_file_and_line(line: bytes, fault: str) -> None:
    with pytest.raises(StartupError, match=fault):
        parse_history(line, "h.jsonl:3")


@pytest.mark.parametrize("line", [rb'{"user_id": "\ud800", "items": []}', rb'{"user_id": "u", "items": [["", 1]]}'])
def test_ids_that_cannot_be_stored_are_refused(line: bytes) -> None:
    with pytest.raises(StartupError, match=r"^h:3: "):
        parse_history(line, "h:3")


async def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="No such file"):
        async for _ in read_histories(tmp_path / "nowhere"):
            pass
