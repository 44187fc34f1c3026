"""Rows that overlap become one sequence a user, from files made here and from the real ones where they lie beside."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data import load
from training.data.minionerec import lay_over, read_minionerec
from training.errors import DataError

REAL = Path(__file__).parents[4] / "shared" / "data" / "industrial"
HEADER = "user_id,history_item_id,item_id\n"


def folder_of(folder: Path, valid: str, test: str, items: str | None = None) -> Path:
    default = {str(n): {"title": f"Tape {n}", "description": "['Sticky.', 'Long.']"} for n in range(5)}
    (folder / "Toy.item.json").write_text(items or json.dumps(default))
    (folder / "valid.csv").write_text(HEADER + valid)
    (folder / "test.csv").write_text(HEADER + test)
    return folder


def test_the_rows_of_a_user_become_one_sequence(tmp_path: Path) -> None:
    valid = 'A,"[0, 1]",2\nA,"[0, 1, 2]",3\nB,[4],4\n'
    dataset = read_minionerec(folder_of(tmp_path, valid, 'A,"[2, 3]",0\n'))
    assert dataset.sequences == {"A": (0, 1, 2, 3, 0), "B": (4, 4)}
    assert dataset.timestamps["B"] == (0.0, 1.0)
    assert dataset.items[3].title == "Tape 3"
    assert dataset.items[3].description == "Sticky. Long."


@given(st.lists(st.integers(0, 99), min_size=2, max_size=40, unique=True), st.integers(1, 10))
def test_windows_of_a_sequence_give_it_back(sequence: list[int], history: int) -> None:
    rebuilt: list[int] = []
    for end in range(1, len(sequence)):
        lay_over(rebuilt, sequence[max(0, end - history) : end + 1])
    assert rebuilt == sequence


@pytest.mark.parametrize(
    ("valid", "items", "reason"),
    [
        ("", None, "expected rows in train.csv, valid.csv, test.csv, found none"),
        ("A,[0],9\n", None, "user 'A' met an item outside the 5 items"),
        ("A,nothing,1\n", None, r"valid\.csv: line 2: not in the expected form"),
        ("A,[0],1\n", "{", r"Toy\.item\.json: not in the expected form"),
        ("A,[0],1\n", '{"1": {"title": "Tape"}}', r"Toy\.item\.json: not in the expected form"),
    ],
)
def test_files_that_do_not_fit_are_refused(valid: str, items: str | None, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        read_minionerec(folder_of(tmp_path, valid, "", items))


def test_the_real_rows_lie_over_each_other_without_a_gap(tmp_path: Path) -> None:
    if not REAL.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{REAL.name} must lie beside the project in CI")
        pytest.skip("the Industrial files do not lie beside the project")
    dataset = load(f"minionerec:{REAL}", cache_dir=tmp_path)
    assert (len(dataset.sequences), len(dataset.items), dataset.num_interactions) == (3285, 3686, 22_743)
