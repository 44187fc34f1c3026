"""A stage is there as a whole or not at all, and stands as long as its inputs."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from training.errors import ResumeError, TrainingError
from training.progress import QuietReporter
from training.stages import RunFolder, fingerprint_of, write_whole
from training.state_file import save_state


def run_in(folder: Path) -> RunFolder:
    return RunFolder(folder, QuietReporter())


def test_a_stage_is_made_once_and_again_when_its_inputs_change(tmp_path: Path) -> None:
    made: list[str] = []

    def make(folder: Path) -> None:
        made.append("made")
        (folder / "x.json").write_text(json.dumps({"value": len(made)}))

    first = run_in(tmp_path).stage("one", {"a": 1}, make)
    assert run_in(tmp_path).stage("one", {"a": 1}, make).fingerprint == first.fingerprint
    assert len(made) == 1
    changed = run_in(tmp_path).stage("one", {"a": 2}, make)
    assert changed.fingerprint != first.fingerprint
    assert changed.read_json("x.json") == {"value": 2}


def test_a_failure_leaves_the_old_stage_and_no_rest(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half.json").write_text("{")
        raise OSError(28, "No space left on device")

    run_in(tmp_path).stage("one", {"a": 1}, lambda folder: None)
    with pytest.raises(TrainingError, match="one: .* cannot be written.*No space left"):
        run_in(tmp_path).stage("one", {"a": 2}, fail)
    assert [path.name for path in (tmp_path / "stages").iterdir()] == ["one"]


def test_a_disk_that_really_takes_no_more_bytes_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    run_in(tmp_path).stage("one", {"a": 1}, lambda folder: None)
    with (
        no_file_beyond(1000),
        pytest.raises(TrainingError, match="one: .* cannot be written.*free some space and run again"),
    ):
        run_in(tmp_path).stage("one", {"a": 2}, lambda folder: save_file({"x": torch.zeros(10_000)}, folder / "x"))
    assert [path.name for path in (tmp_path / "stages").iterdir()] == ["one"]
    with no_file_beyond(1000), pytest.raises(TrainingError, match=r"state.*free some space and run again"):
        save_state(tmp_path / "state" / "one.safetensors", {"x": torch.zeros(10_000)}, "f")
    assert not list((tmp_path / "state").glob("*.tmp"))


def test_a_text_file_is_as_it_was_where_the_disk_takes_no_more(tmp_path: Path) -> None:
    write_whole(tmp_path / "page.html", "old")
    with no_file_beyond(1000), pytest.raises(OSError, match="File too large"):
        write_whole(tmp_path / "page.html", "new" * 1000)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", "old")]


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """Every write past that size fails as on a full disk, in this process, through the system's own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    rest = tmp_path / "stages" / ".one.tmp"
    rest.mkdir(parents=True)
    (rest / "half.json").write_text("{")
    stage = run_in(tmp_path).stage("one", {}, lambda folder: None)
    assert [path.name for path in stage.folder.iterdir()] == ["stage.json"]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    stage = run_in(tmp_path).stage("one", {}, lambda folder: None)
    (stage.folder / "stage.json").write_text("{")
    with pytest.raises(ResumeError, match=r"stage\.json: cannot be read"):
        run_in(tmp_path).stage("one", {}, lambda folder: None)


def test_fingerprints_do_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint_of({"a": 1, "b": 2}) == fingerprint_of({"b": 2, "a": 1})
    assert fingerprint_of({"a": 1}) != fingerprint_of({"a": 2})


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with (
        run_in(tmp_path).locked(),
        pytest.raises(TrainingError, match="another process is training"),
        run_in(tmp_path).locked(),
    ):
        pass
    with run_in(tmp_path).locked():
        pass


def test_a_state_is_continued_only_with_the_inputs_it_was_made_from(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def half(folder: Path) -> None:
        run_in(tmp_path).state_file("one").write_bytes(b"half")
        raise Killed

    found: list[bool] = []

    def whole(folder: Path) -> None:
        found.append(run_in(tmp_path).state_file("one").exists())

    for value in (1, 2):
        with pytest.raises(Killed):
            run_in(tmp_path).stage("one", {"a": 1}, half)
        run_in(tmp_path).stage("one", {"a": value}, whole)
        run_in(tmp_path).forget("one")
    assert found == [True, False]
    assert list((tmp_path / "state").iterdir()) == []
