"""Results as they come: one JSON object a line, appended when it is known, so that a run that ends early goes on later.

A row belongs to the code it measured: rows of another engine are left in the file and not reused.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from service.errors import StartupError

Row = Mapping[str, Any]
SOURCES = ("service/engine", "service/model")


class Rows:
    """The rows of one file that fit ``digest``; `add` appends and remembers."""

    def __init__(self, path: Path, digest: str) -> None:
        self._path = path
        self._digest = digest
        self.rows: list[Row] = [row for row in _read(path) if row["engine"] == digest]

    def has(self, section: str, name: str) -> bool:
        """Whether a part of the run has ended before."""
        return any(row["section"] == section and row["name"] == name for row in self.rows)

    def add(self, section: str, name: str, rows: Iterable[Row]) -> None:
        """Append rows of one finished part, all or none."""
        made = [{"section": section, "name": name, "engine": self._digest, **row} for row in rows]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in made))
        self.rows += made

    def of(self, section: str) -> list[Row]:
        """The rows of a section, in the order they came."""
        return [row for row in self.rows if row["section"] == section]


def engine_digest(root: Path) -> str:
    """A digest of the engine's and the model's source, whatever else of the project changed."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (root / folder).glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise StartupError(f"{path}: not a file of results ({error}); name another --out") from None
