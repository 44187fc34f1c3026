"""The backup file: one line a key, a first line that says what it is, a last line by which damage is seen.

    {"format": "groundrec-backup", "version": 1, "saved_at_ms": ...}
    {"key": "...", "expires_at_ms": null, "dump": "<base64 of Redis's own serialisation>"}
    {"keys": 1234, "sha256": "<of all lines before>"}

It knows nothing of Redis but that a key has bytes and an expiry, and nothing of what the bytes mean: whatever the
stores keep under our prefix is kept, today's and tomorrow's.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from service.errors import StartupError

FORMAT, VERSION = "groundrec-backup", 1


@dataclass(frozen=True, slots=True)
class SavedKey:
    """One key: its name, when it expires (Unix milliseconds, None: never) and what Redis's DUMP gave."""

    key: str
    expires_at_ms: int | None
    dump: bytes


class BackupWriter:
    """Writes beside ``file`` and puts the result in its place when all went well: a backup is whole or not there."""

    def __init__(self, file: Path, saved_at_ms: int) -> None:
        self._file, self._temporary = file, file.with_name(f".{file.name}.part")
        self._header = {"format": FORMAT, "version": VERSION, "saved_at_ms": saved_at_ms}
        self._digest, self.keys = hashlib.sha256(), 0
        self._out: IO[bytes]

    def __enter__(self) -> "BackupWriter":
        try:
            self._out = self._temporary.open("wb")
        except OSError as error:
            raise StartupError(f"--file {self._file}: cannot be written: {error.strerror}") from None
        self._write(self._header)
        return self

    def add(self, saved: SavedKey) -> None:
        """One more key."""
        text = base64.b64encode(saved.dump).decode("ascii")
        self._write({"key": saved.key, "expires_at_ms": saved.expires_at_ms, "dump": text})
        self.keys += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._out.write(_line({"keys": self.keys, "sha256": self._digest.hexdigest()}))
            self._out.flush()
            os.fsync(self._out.fileno())
        self._out.close()
        if kind is None:
            os.replace(self._temporary, self._file)
        else:
            self._temporary.unlink(missing_ok=True)

    def _write(self, row: dict[str, Any]) -> None:
        line = _line(row)
        self._digest.update(line)
        self._out.write(line)


def verify_backup(file: Path) -> int:
    """Read a backup through without using it; returns its number of keys.

    Raises:
        StartupError: it is not one, of a newer version, cut off or damaged.
    """
    digest, lines, last = hashlib.sha256(), 0, b""
    for line in _lines(file):
        if lines:
            digest.update(last)
        last, lines = line, lines + 1
    header, trailer = _row(next(_lines(file), b"")), _row(last)
    if header.get("format") != FORMAT:
        raise StartupError(f"--file {file}: not a backup of groundrec")
    if header.get("version") != VERSION:
        raise StartupError(f"--file {file}: backup version {header.get('version')}, this program reads {VERSION}")
    if trailer.get("sha256") != digest.hexdigest() or trailer.get("keys") != lines - 2:
        raise StartupError(f"--file {file}: cut off or damaged; its last line does not fit the others")
    return lines - 2


def read_backup(file: Path) -> Iterator[SavedKey]:
    """The keys of a backup that `verify_backup` has read through."""
    for line in _lines(file):
        row = _row(line)
        if "dump" in row:
            yield SavedKey(row["key"], row["expires_at_ms"], base64.b64decode(row["dump"]))


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as lines:
            yield from lines
    except OSError as error:
        raise StartupError(f"--file {file}: cannot be read: {error.strerror}") from None


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
