"""What an experiment compares: one recipe, arms that differ in a few keys, seeds.

It is read from `NAME/experiment.toml`. Every arm is checked as a recipe before anything runs, because a misspelt key in
the last arm would be found out after hours.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.config import Recipe, load_recipe
from training.errors import RecipeError

FOLDER = Path(__file__).parent
CONFIG = "experiment.toml"


class Experiment(BaseModel):
    """``base`` are overrides of ``recipe`` that all arms share; ``reference`` is the arm others are compared with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str
    recipe: str
    reference: str
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    base: tuple[str, ...] = ()
    arms: Mapping[str, tuple[str, ...]] = Field(min_length=2)

    def arm_recipe(self, arm: str, seed: int, more: Sequence[str] = ()) -> Recipe:
        """The recipe of one arm with one seed.

        Raises:
            RecipeError: an override is wrong.
        """
        return load_recipe(self.recipe, [*self.base, *self.arms[arm], *more, f"seed={seed}"])


def load_experiment(name_or_path: str, more: Sequence[str] = (), recipe: str | None = None) -> Experiment:
    """An experiment by its name or from a TOML file, every arm checked; ``recipe`` takes the place of its own.

    Raises:
        RecipeError: names the file, the arm and the key.
    """
    path = _find(name_or_path)
    try:
        experiment = Experiment.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(f"experiment {path}: cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RecipeError(f"experiment {path}: {place}: {first['msg']}") from error
    if recipe is not None:
        experiment = experiment.model_copy(update={"recipe": recipe})
    if experiment.reference not in experiment.arms:
        raise RecipeError(f"experiment {path}: reference {experiment.reference!r} is no arm")
    for arm in experiment.arms:
        try:
            experiment.arm_recipe(arm, experiment.seeds[0], more)
        except RecipeError as error:
            raise RecipeError(f"experiment {path}: arm {arm!r}: {error}") from error
    return experiment


def experiment_names() -> list[str]:
    """The experiments that come with the project."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG}"))


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    if name_or_path not in experiment_names():
        raise RecipeError(
            f"experiment {name_or_path!r} is unknown; choose {', '.join(experiment_names())} or a .toml file"
        )
    return FOLDER / name_or_path / CONFIG
