"""The data of a run: what a recipe's source holds, split by time, with the popularity that training may know."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.config import Recipe
from training.data import Dataset, Split, leave_last_out, load, popularity
from training.data.hold_out import held_out_items, items_of_kinds, without_items
from training.errors import DataError, RecipeError
from training.grounding.registry import objective
from training.progress import Reporter

REPEATS_MATTER = 0.05


@dataclass(frozen=True, slots=True)
class TrainingData:
    """``popularity_N`` counts training events only, int64 [N]."""

    dataset: Dataset
    split: Split
    popularity_N: NDArray[np.int64]

    @classmethod
    def of(cls, recipe: Recipe, cache_dir: Path) -> "TrainingData":
        """Read the recipe's source.

        Raises:
            DataError: it cannot be used.
            RecipeError: the recipe asks for what this data cannot give, or for a grounding option that is none.
        """
        dataset = read_dataset(recipe, cache_dir)
        if recipe.data.holds_out:
            part = recipe.data
            drawn = held_out_items(dataset, part.hold_out, part.hold_out_by, recipe.seed)
            dataset = without_items(dataset, np.union1d(drawn, items_of_kinds(dataset, part.hold_out_kinds)))
        check_size(recipe, len(dataset.items))
        objective(recipe.grounding.objective, **recipe.grounding.options)  # a misspelt option is found out now
        return cls.from_dataset(dataset)

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> "TrainingData":
        """Split a data set.

        Raises:
            DataError: nobody has enough interactions.
        """
        split = leave_last_out(dataset)
        if not any(len(history) > 1 for history in split.train.values()):
            raise DataError(f"{dataset.name}: no user has four interactions, too few to train, validate and test")
        return cls(dataset, split, popularity(split, len(dataset.items)))

    @property
    def occurrences_M(self) -> NDArray[np.int64]:
        """Item numbers of all training events."""
        return np.concatenate([np.array(sequence, np.int64) for sequence in self.split.train.values()])

    def exclude_seen(self, wish: bool | str) -> bool:
        """The recipe's wish; "auto" excludes seen items unless users often come back to them."""
        return self.split.repeat_share < REPEATS_MATTER if isinstance(wish, str) else wish

    def describe(self, reporter: Reporter) -> None:
        """Say what was read, under which licence, and what was left out."""
        dataset = self.dataset
        reporter.say(
            f"data: {dataset.name}: {len(dataset.items)} items, {len(dataset.sequences)} users, "
            f"{dataset.num_interactions} interactions, {self.split.repeat_share:.1%} of held-out items are repeats"
        )
        reporter.say(f"data: {dataset.license_note}")
        if dataset.defects.total:
            reporter.say(f"data: left out {dataset.defects.summary()}")


def read_dataset(recipe: Recipe, cache_dir: Path) -> Dataset:
    """The recipe's source as a whole, held-out items included.

    Raises:
        DataError: it cannot be used.
    """
    part = recipe.data
    return load(
        part.source,
        cache_dir=cache_dir,
        items=part.items,
        interactions=part.interactions,
        on_defect=part.on_defect,
    )


def check_size(recipe: Recipe, items: int) -> None:
    """Refuse codebooks that the items cannot fill.

    Raises:
        RecipeError: names the key and a value that fits.
    """
    if items < recipe.sids.codes:
        fitting = max(2, 2 ** (max(items // 3, 2).bit_length() - 1))
        raise RecipeError(
            f"{items} items cannot fill {recipe.sids.codes} codes a level; use --set sids.codes={fitting}"
        )
