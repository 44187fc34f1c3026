"""Stages of a run on disk: each is a folder that appears whole or not at all, and is skipped while its inputs stand.

A stage's fingerprint covers its part of the recipe and the fingerprints of what it reads, so a change upstream redoes
what depends on it and nothing else. A folder is made under another name and renamed; a kill leaves no half stage. It
knows nothing of what stages do.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from training.errors import ResumeError, TrainingError
from training.progress import Reporter

RECORD = "stage.json"
LOCK = ".training.lock"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A finished stage: its folder, what it was made from, what it cost."""

    folder: Path
    fingerprint: str
    wall_seconds: float
    cpu_seconds: float

    def read_json(self, name: str) -> dict[str, Any]:
        """One of its JSON files."""
        loaded: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        return loaded


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run: ``stages/NAME`` for finished stages, ``state/`` for those that were interrupted.

    ``read_only`` is for the processes that only join in fine-tuning: stages are found, never made.
    """

    path: Path
    reporter: Reporter
    read_only: bool = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder while the block runs; a killed process holds nothing.

        Raises:
            TrainingError: another process is training in it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / LOCK).open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield
        except BlockingIOError:
            raise TrainingError(f"{self.path}: another process is training in this folder") from None

    def state_file(self, name: str) -> Path:
        """Where a stage keeps what it needs to continue."""
        return self.path / "state" / f"{name}.safetensors"

    def stage(self, name: str, inputs: Mapping[str, Any], make: Callable[[Path], None]) -> Stage:
        """The finished stage, made by ``make(folder)`` unless it stands already.

        Raises:
            TrainingError: its folder cannot be written, or the stage does not stand in a folder that is only read.
        """
        fingerprint = _stage_fingerprint(name, inputs)
        found = self.find(name)
        if found is not None and found.fingerprint == fingerprint:
            self.reporter.say(f"{name}: done earlier")
            return found
        if self.read_only:
            raise TrainingError(
                f"{self.path}: no stage {name} of this recipe; all processes need one folder and recipe"
            )
        if found is not None:
            self.reporter.say(f"{name}: its inputs changed, made again")
        return self._make(name, fingerprint, make)

    def find(self, name: str) -> Stage | None:
        """A finished stage, whatever it was made from.

        Raises:
            ResumeError: its record is damaged.
        """
        folder = self.path / "stages" / name
        try:
            row = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            return Stage(folder, row["fingerprint"], row["wall_seconds"], row["cpu_seconds"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResumeError(f"{folder / RECORD}: cannot be read ({error}); delete {folder} and run again") from error

    def stands(self, name: str, inputs: Mapping[str, Any]) -> bool:
        """Whether the stage is finished and was made from these inputs."""
        found = self.find(name)
        return found is not None and found.fingerprint == _stage_fingerprint(name, inputs)

    def forget(self, name: str) -> None:
        """Remove a finished stage, so that it is made again."""
        shutil.rmtree(self.path / "stages" / name, ignore_errors=True)

    def _make(self, name: str, fingerprint: str, make: Callable[[Path], None]) -> Stage:
        folder = self.path / "stages" / name
        temporary = folder.with_name(f".{name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            self._claim_state(name, fingerprint)
            wall, cpu = time.monotonic(), time.process_time()
            make(temporary)
            spent = {"wall_seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}
            write_json(temporary / RECORD, {"fingerprint": fingerprint, **spent})
            replace_folder(temporary, folder)
        except (OSError, SafetensorError) as error:  # a full disk is an OSError to Python, not to safetensors
            raise TrainingError(
                f"{name}: {folder} cannot be written: {error}; free some space and run again"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._forget_state(name)
        return Stage(folder, fingerprint, **spent)

    def _claim_state(self, name: str, fingerprint: str) -> None:
        """Keep what an interrupted stage left only if it had the very same inputs."""
        owner = self._state_owner(name)
        if owner.exists() and owner.read_text(encoding="utf-8") == fingerprint:
            if self.state_file(name).exists():
                self.reporter.say(f"{name}: goes on where it stopped")
            return
        self._forget_state(name)
        owner.parent.mkdir(parents=True, exist_ok=True)
        owner.write_text(fingerprint, encoding="utf-8")

    def _forget_state(self, name: str) -> None:
        # the owner goes last: a kill in between leaves an owner without a state, which is a fresh start
        self.state_file(name).unlink(missing_ok=True)
        self._state_owner(name).unlink(missing_ok=True)

    def _state_owner(self, name: str) -> Path:
        return self.path / "state" / f"{name}.fingerprint"


def _stage_fingerprint(name: str, inputs: Mapping[str, Any]) -> str:
    return fingerprint_of({"stage": name, "format": FORMAT, **inputs})


def fingerprint_of(inputs: Mapping[str, Any]) -> str:
    """Sha256 of plain data; equal data, equal fingerprint."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write readable JSON, replaced as a whole."""
    write_whole(path, json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file that is there as a whole, or as it was before."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def replace_folder(source: Path, target: Path) -> None:
    """Put ``source`` in the place of ``target``; between the two renames the old one is kept aside."""
    aside = target.with_name(f".{target.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        os.replace(target, aside)
    os.replace(source, target)
    shutil.rmtree(aside, ignore_errors=True)
