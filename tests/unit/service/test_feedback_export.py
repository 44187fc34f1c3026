"""The loop closes: what users did is exported as interactions, and the reader of training takes them."""

import json
from pathlib import Path

import pytest

from service.errors import StartupError
from service.feedback_export import Exported, export_feedback
from service.stores.feedback import FeedbackEvent, ServedRecommendation
from service.stores.memory_feedback import MemoryFeedback
from training.data.tables import read_tables

NOW = 1_700_000_000.0


async def recorded() -> MemoryFeedback:
    log = MemoryFeedback()
    await log.add_served([ServedRecommendation("r-1", NOW, "model-a", 3, ("item-1", "item-2"), "u1")])
    await log.add_events(
        [
            FeedbackEvent("u1", "item-2", "click", 1.0, NOW + 1, "e-1", "r-1"),
            FeedbackEvent("u1", "item-2", "click", 1.0, NOW + 1, "e-1", "r-1"),
            FeedbackEvent("u2", "item-2", "click", 1.0, NOW + 2, "e-1"),
            FeedbackEvent("u1", "item-1", "impression", 0.0, NOW + 3, None, "r-1"),
            FeedbackEvent("u1", "item-9", "purchase", 5.0, NOW + 4, None, "r-1"),
            FeedbackEvent("u2", "item-1", "view", 1.0, NOW + 5, None, "r-gone"),
        ]
    )
    return log


def items(folder: Path) -> Path:
    file = folder / "items.csv"
    file.write_text("item_id,title\nitem-1,One\nitem-2,Two\nitem-9,Nine\n")
    return file


@pytest.mark.parametrize("name", ["feedback.jsonl", "feedback.parquet"])
async def test_training_reads_the_export_as_interactions(tmp_path: Path, name: str) -> None:
    done = await export_feedback(await recorded(), tmp_path / name)
    assert done == Exported(rows=4, repeated=1, weightless=1)
    data = read_tables(items(tmp_path), tmp_path / name)
    assert [[data.items[number].item_id for number in sequence] for sequence in data.sequences.values()] == [
        ["item-2", "item-9"],
        ["item-2", "item-1"],
    ]


async def test_a_row_says_where_it_was_shown_and_by_which_model(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    await export_feedback(await recorded(), file, everything=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["click", "click", "impression", "purchase", "view"]
    first, _, _, bought, gone = rows
    assert first == {
        "user_id": "u1",
        "item_id": "item-2",
        "timestamp": NOW + 1,
        "event": "click",
        "weight": 1.0,
        "event_id": "e-1",
        "recommendation_id": "r-1",
        "model_version": "model-a",
        "rank": 2,
    }
    assert "rank" not in bought and bought["model_version"] == "model-a", "item-9 was not among those shown"
    assert "model_version" not in gone


@pytest.mark.parametrize(("name", "fault"), [("a.csv", "unknown kind"), ("nowhere/a.jsonl", "there is no folder")])
async def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str, fault: str) -> None:
    with pytest.raises(StartupError, match=fault):
        await export_feedback(MemoryFeedback(), tmp_path / name)


async def test_a_failed_export_leaves_the_old_file(tmp_path: Path) -> None:
    class Down(MemoryFeedback):
        async def events(self):  # type: ignore[no-untyped-def]
            raise RuntimeError("down")
            yield

    file = tmp_path / "feedback.jsonl"
    file.write_text("old\n")
    with pytest.raises(RuntimeError):
        await export_feedback(Down(), file)
    assert file.read_text() == "old\n" and list(tmp_path.iterdir()) == [file]
