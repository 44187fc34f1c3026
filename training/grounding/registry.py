"""Grounding objectives by name."""

from typing import Any

from training.errors import RecipeError
from training.grounding.base import Objective
from training.grounding.codebook import Codebook
from training.grounding.keywords import Keywords
from training.grounding.lm import LanguageModelling
from training.grounding.mean import Mean
from training.grounding.random import Random
from training.grounding.regression import Regression

OBJECTIVES: dict[str, type[Any]] = {
    "lm": LanguageModelling,
    "regression": Regression,
    "mean": Mean,
    "random": Random,
    "codebook": Codebook,
    "keywords": Keywords,
}


def objective(name: str, **options: Any) -> Objective:
    """An objective with its options.

    Raises:
        RecipeError: the name or an option is unknown.
    """
    if name not in OBJECTIVES:
        raise RecipeError(f"grounding.objective {name!r} is unknown; choose {', '.join(OBJECTIVES)}")
    try:
        made: Objective = OBJECTIVES[name](**options)
    except TypeError as error:
        raise RecipeError(f"grounding.options: {str(error).split(') ', 1)[-1]} (objective {name!r})") from error
    return made
