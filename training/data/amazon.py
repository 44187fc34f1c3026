"""Amazon review data in the form of the CollisionGenRec files: ``NAME.inter.json`` and ``NAME.item.json``.

The files order a user's items in time but carry no times, so the position in the sequence stands in for the timestamp.
"""

import json
from pathlib import Path
from typing import Any

from training.data.dataset import AttributeValue, CatalogItem, Dataset
from training.errors import DataError

LICENSE_NOTE = "Amazon review data (McAuley, UCSD), distributed for research."


def read_amazon(folder: Path) -> Dataset:
    """Read the one data set in ``folder``; an item's number in the file, as text, is its ``item_id``.

    Raises:
        DataError: a file is missing, not of the expected form, or a user met an item that is not there.
    """
    interactions, items = _load(folder, "inter"), _load(folder, "item")
    try:
        catalog = tuple(_item(number, items[str(number)]) for number in range(len(items)))
        sequences = {user: tuple(int(item) for item in sequence) for user, sequence in interactions.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: not in the expected form: {error!r}") from error
    _check_numbers(folder, sequences, len(catalog))
    timestamps = {user: tuple(float(n) for n in range(len(sequence))) for user, sequence in sequences.items()}
    return Dataset(f"amazon-{folder.name}", catalog, sequences, timestamps, LICENSE_NOTE)


def _load(folder: Path, kind: str) -> dict[str, Any]:
    paths = sorted(folder.glob(f"*.{kind}.json"))
    if len(paths) != 1:
        raise DataError(f"{folder}: expected one *.{kind}.json, found {len(paths)}")
    try:
        loaded: dict[str, Any] = json.loads(paths[0].read_bytes())
    except ValueError as error:
        raise DataError(f"{paths[0]}: not JSON: {error}") from error
    return loaded


def _check_numbers(folder: Path, sequences: dict[str, tuple[int, ...]], num_items: int) -> None:
    if not any(sequences.values()):
        raise DataError(f"{folder}: no interactions")
    for user, sequence in sequences.items():
        if not all(0 <= item < num_items for item in sequence):
            raise DataError(f"{folder}: user {user!r} met an item outside the {num_items} items, counted from 0")


def _item(number: int, row: dict[str, Any]) -> CatalogItem:
    categories = str(row.get("categories", ""))
    attributes: dict[str, AttributeValue] = {
        "brand": str(row.get("brand", "")),
        "categories": tuple(part.strip() for part in categories.split(",")),
    }
    return CatalogItem(str(number), str(row["title"]), str(row.get("description", "")), attributes)
