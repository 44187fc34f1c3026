"""A refusal says how much is wrong, where the first of it lies and how to go on."""

import pytest

from training.data.defects import EXAMPLES_KEPT, EXAMPLES_SHOWN, DefectReport
from training.errors import DataError


def test_a_refusal_counts_all_defects_and_shows_the_first() -> None:
    report = DefectReport()
    for row in range(1, 101):
        report.add("events.csv", row, "item_id", "unknown_item", "'zz'")
    report.add("events.csv", 101, "timestamp", "bad_timestamp", "'soon'")
    with pytest.raises(DataError) as refusal:
        report.refuse()
    message = str(refusal.value)
    assert message.startswith("101 defects (100 unknown_item, 1 bad_timestamp): events.csv:1: item_id: unknown_item")
    assert message.endswith("--on-defect skip")
    assert message.count("events.csv:") == EXAMPLES_SHOWN
    assert [defect.row for defect in report.examples] == list(range(1, EXAMPLES_KEPT + 1))


def test_a_cut_text_alone_refuses_nothing() -> None:
    report = DefectReport()
    report.add("items.csv", 2, "description", "too_long_text", "100000 characters")
    report.refuse()
    assert report.total == 1
    report.add("items.csv", 3, "title", "empty_text", "no title")
    with pytest.raises(DataError, match="1 empty_text"):
        report.refuse()
