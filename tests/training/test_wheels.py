"""A wheel is downloaded once, alone, and only the expected file is accepted."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from training.errors import TrainingError
from training.wheels import fetch_wheel

CONTENT = b"a wheel"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Pip:
    """Stands in for pip: writes ``content`` or fails."""

    def __init__(self, content: bytes | None) -> None:
        self.content, self.commands = content, list[list[str]]()

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.content is None:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: first\nERROR: no such version\n")
        Path(command[command.index("--dest") + 1], "some-1.0-py3-none-any.whl").write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


def fetch(monkeypatch: pytest.MonkeyPatch, folder: Path, content: bytes | None) -> tuple[Pip, Path]:
    pip = Pip(content)
    monkeypatch.setattr(subprocess, "run", pip)
    return pip, fetch_wheel("some==1.0", SHA256, folder)


def test_a_wheel_is_fetched_without_its_dependencies_and_only_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip, path = fetch(monkeypatch, tmp_path / "cache", CONTENT)
    assert path.read_bytes() == CONTENT
    assert "--no-deps" in pip.commands[0]
    again, same = fetch(monkeypatch, tmp_path / "cache", None)
    assert (again.commands, same) == ([], path)


def test_another_file_than_expected_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="has not the expected sha256"):
        fetch(monkeypatch, tmp_path, b"tampered")


def test_a_failed_download_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"^pip could not download some==1.0: ERROR: no such version$"):
        fetch(monkeypatch, tmp_path, None)
