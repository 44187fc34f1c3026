"""The Amazon files, small ones made here and the real ones where they lie beside the project."""

import json
import os
from pathlib import Path

import pytest

from training.data import load
from training.data.amazon import read_amazon
from training.errors import DataError

REAL = Path(__file__).parents[4] / "shared" / "data" / "scientific"


def test_items_and_sequences(tmp_path: Path) -> None:
    items = {"0": {"title": "Tape", "description": "Sticky", "brand": "3M", "categories": "Industrial,Tapes"}}
    (tmp_path / "Toy.item.json").write_text(json.dumps(items))
    (tmp_path / "Toy.inter.json").write_text(json.dumps({"5": [0, 0]}))
    dataset = read_amazon(tmp_path)
    assert dataset.items[0].attributes == {"brand": "3M", "categories": ("Industrial", "Tapes")}
    assert dataset.sequences == {"5": (0, 0)}
    assert dataset.timestamps == {"5": (0.0, 1.0)}


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected one \*\.inter\.json, found 0"):
        read_amazon(tmp_path)
    (tmp_path / "Toy.item.json").write_text('{"0": {}}')
    (tmp_path / "Toy.inter.json").write_text("{}")
    with pytest.raises(DataError, match="not in the expected form"):
        read_amazon(tmp_path)


@pytest.mark.parametrize(
    ("items", "interactions", "reason"),
    [
        ("{", "{}", r"Toy\.item\.json: not JSON"),
        ('{"0": {"title": "Tape"}}', "[]", "not in the expected form"),
        ('{"0": {"title": "Tape"}}', '{"5": [0, 1]}', "user '5' met an item outside the 1 items"),
        ('{"0": {"title": "Tape"}}', '{"5": [-1]}', "user '5' met an item outside the 1 items"),
        ('{"0": {"title": "Tape"}}', '{"5": []}', "no interactions"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(items: str, interactions: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "Toy.item.json").write_text(items)
    (tmp_path / "Toy.inter.json").write_text(interactions)
    with pytest.raises(DataError, match=reason):
        read_amazon(tmp_path)


def test_the_real_set_is_complete(tmp_path: Path) -> None:
    if not REAL.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{REAL.name} must lie beside the project in CI")
        pytest.skip("the Amazon Scientific files do not lie beside the project")
    dataset = load(f"amazon:{REAL}", cache_dir=tmp_path)
    assert (len(dataset.sequences), len(dataset.items), dataset.num_interactions) == (8317, 4344, 58_492)
