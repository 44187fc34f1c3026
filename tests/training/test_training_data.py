"""What a recipe cannot get from its data is refused as soon as the data is read, dry runs included."""

from pathlib import Path

import pytest

from training.config import load_recipe
from training.errors import DataError, RecipeError
from training.training_data import TrainingData, check_size


@pytest.mark.parametrize(("items", "fitting"), [(40, 8), (200, 64), (5, 2)])
def test_too_many_codes_are_refused_with_a_number_that_fits(items: int, fitting: int) -> None:
    with pytest.raises(
        RecipeError, match=rf"{items} items cannot fill 256 codes a level; use --set sids.codes={fitting}"
    ):
        check_size(load_recipe("tables"), items)
    check_size(load_recipe("tables", [f"sids.codes={fitting}"]), items)


def test_a_misspelt_grounding_option_is_found_before_any_work(tmp_path: Path) -> None:
    items, events = tmp_path / "items.csv", tmp_path / "events.csv"
    items.write_text("item_id,title\n" + "".join(f"i{n},title {n}\n" for n in range(9)))
    events.write_text("user_id,item_id,timestamp\n" + "".join(f"u,i{n},{n}\n" for n in range(9)))
    settings = ["sids.codes=4", "grounding.options.step=20", f'data.items="{items}"', f'data.interactions="{events}"']
    with pytest.raises(RecipeError, match="step"):
        TrainingData.of(load_recipe("tables", settings), tmp_path)


def test_users_with_one_event_each_are_refused(tmp_path: Path) -> None:
    items, events = tmp_path / "items.csv", tmp_path / "events.csv"
    items.write_text("item_id,title\n" + "".join(f"i{n},title {n}\n" for n in range(9)))
    events.write_text("user_id,item_id,timestamp\n" + "".join(f"u{n},i{n},{n}\n" for n in range(9)))
    settings = ["sids.codes=4", f'data.items="{items}"', f'data.interactions="{events}"']
    with pytest.raises(DataError, match="no user has four interactions, too few to train, validate and test"):
        TrainingData.of(load_recipe("tables", settings), tmp_path)
