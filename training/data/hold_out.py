"""Items kept out of training altogether, as if they had been posted to the service after it: the *cold* items.

A data set is cut before anything else reads it, so that no stage (SIDs, grounding, memory, fine-tuning) can see them.
Whoever measures cold items reads the source again, whole. It knows nothing of SIDs and models.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from training.data.dataset import CatalogItem, Dataset
from training.data.split import cold_items_by_time
from training.errors import DataError

HoldOutBy = Literal["random", "newest"]


def held_out_items(dataset: Dataset, share: float, by: HoldOutBy, seed: int) -> NDArray[np.int64]:
    """The numbers of ``share`` of the items, drawn at random or newest by their first event; int64 ascending."""
    if by == "newest":
        return cold_items_by_time(dataset, share)
    drawn = np.random.default_rng(seed).choice(len(dataset.items), round(share * len(dataset.items)), replace=False)
    return np.sort(drawn).astype(np.int64)


def items_of_kinds(dataset: Dataset, kinds: Sequence[str]) -> NDArray[np.int64]:
    """The numbers of the items that have one of these attributes, each ``FIELD=VALUE``; int64 ascending.

    Raises:
        DataError: a kind is not of that form, or no item is of it.
    """
    found: set[int] = set()
    for kind in kinds:
        field, equals, value = kind.partition("=")
        if not (field and equals and value):
            raise DataError(f"data.hold_out_kinds: {kind!r} is not FIELD=VALUE, e.g. genres=Horror")
        of_kind = {number for number, item in enumerate(dataset.items) if has_kind(item, field, value)}
        if not of_kind:
            raise DataError(f"data.hold_out_kinds: no item of {dataset.name} has {kind!r}")
        found |= of_kind
    return np.array(sorted(found), np.int64)


def has_kind(item: CatalogItem, field: str, value: str) -> bool:
    """Whether the attribute ``field`` is ``value`` (a number as it is written shortest), or holds it among others."""
    held = item.attributes.get(field, ())
    if isinstance(held, tuple):
        return value in held
    return value == (f"{held:.15g}" if isinstance(held, float) else str(held))


def without_items(dataset: Dataset, dropped: NDArray[np.int64]) -> Dataset:
    """``dataset`` without some items and all events on them; the rest keeps its order, items are numbered anew.

    Raises:
        DataError: nothing is left.
    """
    kept_N = np.setdiff1d(np.arange(len(dataset.items)), dropped)
    number = {int(old): new for new, old in enumerate(kept_N)}
    sequences: dict[str, tuple[int, ...]] = {}
    timestamps: dict[str, tuple[float, ...]] = {}
    for user, sequence in dataset.sequences.items():
        places = [place for place, item in enumerate(sequence) if item in number]
        if places:
            sequences[user] = tuple(number[sequence[place]] for place in places)
            timestamps[user] = tuple(dataset.timestamps[user][place] for place in places)
    if not sequences:
        raise DataError(f"{dataset.name}: holding out {len(dropped)} of {len(dataset.items)} items leaves no events")
    items = tuple(dataset.items[old] for old in kept_N)
    return Dataset(dataset.name, items, sequences, timestamps, dataset.license_note, dataset.defects)
