"""The recommenders that ours is compared with, by name; those that learn are trained when they are asked for.

Shapes: N items, L levels, E embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.baselines import CoOccurrence, Popularity, Scorer, TextNeighbours, Transitions
from training.config import Recipe
from training.data import Split
from training.recommender import SidRecommender
from training.sasrec import SasRecOptions, train_sasrec
from training.tiger_training import train_tiger
from training.transitions import MAX_ITEMS


@dataclass(frozen=True, slots=True)
class Studied:
    """What a baseline may learn from: the split, training events per item, text embeddings, SIDs, the recipe."""

    split: Split
    popularity_N: NDArray[np.int64]
    embedding_NE: NDArray[np.float32]
    codes_NL: NDArray[np.int64]
    recipe: Recipe


def baselines_of(names: Sequence[str], studied: Studied) -> dict[str, Scorer | SidRecommender]:
    """The recommenders that ``names`` asks for; transitions are left out of catalogues too large for them."""
    split, items, seed = studied.split, len(studied.popularity_N), studied.recipe.seed
    makers: dict[str, Callable[[], Scorer | SidRecommender]] = {
        "popularity": lambda: Popularity(studied.popularity_N),
        "co_occurrence": lambda: CoOccurrence(split.train, items),
        "transitions": lambda: Transitions(split.train, items, studied.recipe.blend),
        "text_neighbours": lambda: TextNeighbours(studied.embedding_NE),
        "sasrec": lambda: train_sasrec(split, items, SasRecOptions(), seed),
        "tiger": lambda: _tiger(studied, with_memory=False),
        "tiger_memory": lambda: _tiger(studied, with_memory=True),
    }
    return {name: makers[name]() for name in names if name != "transitions" or items <= MAX_ITEMS}


def _tiger(studied: Studied, *, with_memory: bool) -> SidRecommender:
    return train_tiger(studied.split, studied.codes_NL, studied.popularity_N, studied.recipe, with_memory=with_memory)
