"""Recipes are read strictly: what is misspelt is named, with its nearest neighbour."""

from pathlib import Path

import pytest

from training.config import Recipe, load_recipe, parse_recipe, recipe_names
from training.errors import RecipeError


@pytest.mark.parametrize("name", ["quickstart", "scientific", "tables"])
def test_the_recipes_that_come_with_the_project_are_valid(name: str) -> None:
    assert name in recipe_names()
    assert isinstance(load_recipe(name), Recipe)


def test_an_unknown_key_is_named_with_file_and_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[finetune]\nepoch = 3\n")
    with pytest.raises(RecipeError, match=r"mine\.toml: finetune\.epoch: unknown key; did you mean 'epochs'\?"):
        load_recipe(str(path))


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(RecipeError, match="finetunes: unknown key; did you mean 'finetune'"):
        parse_recipe({"finetunes": {}}, "x")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"sids": {"codes": 1}}, r"sids\.codes: Input should be greater than or equal to 2"),
        ({"sids": {"method": "rqvea"}}, r"sids\.method: Input should be 'rkmeans' or 'rqvae'"),
        ({"evaluate": {"beam_width": 10}}, r"evaluate\.beam_width must be at least"),
        ({"prompt": {"max_items": 5}, "finetune": {"stride": 6}}, r"finetune\.stride must not exceed"),
    ],
)
def test_impossible_values_are_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe(raw, "x")


def test_overrides_are_toml_values_or_text() -> None:
    recipe = load_recipe("quickstart", ["finetune.epochs=2", "data.source=amazon:there", "seed=7"])
    assert (recipe.finetune.epochs, recipe.data.source, recipe.seed) == (2, "amazon:there", 7)


@pytest.mark.parametrize("override", ["finetune.epochs", "=3", "seed.deep=1"])
def test_a_bad_override_is_shown(override: str) -> None:
    with pytest.raises(RecipeError, match="--set"):
        load_recipe("quickstart", ["seed=1", override])


def test_an_unknown_recipe_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="choose industrial, quickstart, scientific, tables"):
        load_recipe("quickstrat")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(str(tmp_path / "none.toml"))


def test_the_beam_s_own_smoothing_is_a_last_resort_beside_the_dial_of_new_items() -> None:
    with_dial, without = load_recipe("scientific"), load_recipe("scientific", ["serving.new_items=false"])
    assert with_dial.serving.smoothing["boost"] < 0.01 and with_dial.serving.smoothing["new_items"]["text"] == 1.0
    assert without.serving.smoothing == {"temperature": 0.05, "boost": 2.0, "new_items": None}
    chosen = load_recipe("scientific", ["serving.smoothing_boost=3"])
    assert chosen.serving.smoothing["boost"] == 3.0


def test_lists_are_judged_up_to_a_hundred_by_a_beam_as_wide() -> None:
    part = parse_recipe({}, "defaults").evaluate
    assert part.ks == (1, 5, 10, 20, 50, 100)
    assert part.beam_width >= 100
    with pytest.raises(RecipeError, match="beam_width must be at least the largest of evaluate.ks"):
        parse_recipe({"evaluate": {"beam_width": 99}}, "narrow")
