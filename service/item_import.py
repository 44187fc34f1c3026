"""Bulk import: the rows of a file to a running service, in batches, resumable, with every rejected row reported.

The service grounds the items, so whatever it promises for one posted item holds for each of these. Progress is written
down after each acknowledged batch; a run that was stopped goes on behind it, and because posting is idempotent a batch
that was sent twice changes nothing.
"""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from service.client.calls import Item
from service.client.results import PostedItem
from service.errors import ClientError, ProblemError, RefusedError, StartupError
from service.item_file import FileRow, read_items

BATCH = 100
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 1.0


class ItemsClient(Protocol):
    """What posts; `service.client.RecClient` in production."""

    def post_items(self, items: Sequence[Item], *, dry_run: bool = False) -> list[PostedItem]:
        """POST /items."""
        ...


@dataclass(frozen=True, slots=True)
class Imported:
    """Counts by result, and the file with the rejected rows (None: there were none)."""

    results: dict[str, int]
    rejects: Path | None


class ItemImport:
    """Imports one file; ``FILE.import.json`` remembers how far it got, ``FILE.rejected.jsonl`` what was refused."""

    def __init__(self, client: ItemsClient, path: Path, *, restart: bool = False, dry_run: bool = False) -> None:
        self._client, self._path, self._dry_run = client, path, dry_run
        self._place = path.with_name(f"{path.name}.import.json")
        self._rejects = path.with_name(f"{path.name}.rejected.jsonl")
        self._restart = restart or dry_run

    def run(self, progress: Callable[[int], None] = lambda rows: None) -> Imported:
        """Post every row that is not posted yet; ``progress`` is told how many rows were done.

        Raises:
            StartupError: the file cannot be read.
            ClientError: the service refuses the caller or does not come back within a minute.
        """
        rows = read_items(self._path)
        fingerprint = _fingerprint(self._path) if self._path.is_file() else ""
        done, counts = self._resume(fingerprint)
        if not done:
            self._rejects.unlink(missing_ok=True)
        progress(sum(1 for _ in islice(rows, done)))
        while batch := list(islice(rows, BATCH)):
            rejected = self._post(batch, counts)
            done += len(batch)
            self._note(fingerprint, done, counts, rejected)
            progress(len(batch))
        self._place.unlink(missing_ok=True)  # it is complete: a later run begins anew, and finds all unchanged
        return Imported(dict(+counts), self._rejects if counts["rejected"] else None)

    def _post(self, batch: Sequence[FileRow], counts: "Counter[str]") -> list[FileRow]:
        """Send one batch; the rows that were rejected, by the reader or by the service."""
        rejected = [row for row in batch if row.item is None]
        sent = [row for row in batch if row.item is not None]
        for row, result in zip(sent, self._results(sent), strict=True):
            if result.result == "rejected":
                field, _, reason = (result.reason or "").partition(": ")
                rejected.append(FileRow(row.number, row.item, field, reason))
            else:
                counts[result.result] += 1
        counts["rejected"] += len(rejected)
        return sorted(rejected, key=lambda row: row.number)

    def _results(self, rows: Sequence[FileRow]) -> Iterator[PostedItem]:
        items = [row.item for row in rows if row.item is not None]
        if not items:
            return iter(())
        try:
            return iter(self._patiently(items))
        except RefusedError as error:
            if error.status != 422:
                raise
            if len(items) > 1:  # the call as a whole was refused for one of them: which?
                return (result for row in rows for result in self._results([row]))
            parts = error.pointers[0].split("/") if error.pointers else []
            field = next((part for part in parts if part and not part.isdigit()), "row")
            return iter([PostedItem(items[0].item_id, "rejected", reason=f"{field}: {error}")])

    def _patiently(self, items: Sequence[Item]) -> list[PostedItem]:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._client.post_items(items, dry_run=self._dry_run)
            except ClientError as error:
                refused = isinstance(error, ProblemError) and 400 <= error.status < 500 and error.status != 429
                if refused or time.monotonic() > end:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _resume(self, fingerprint: str) -> tuple[int, "Counter[str]"]:
        try:
            noted = json.loads(self._place.read_text("utf-8"))
        except (OSError, ValueError):
            return 0, Counter()
        if self._restart or noted.get("file") != fingerprint:
            return 0, Counter()
        return int(noted["rows"]), Counter(noted["results"])

    def _note(self, fingerprint: str, done: int, counts: "Counter[str]", rejected: Sequence[FileRow]) -> None:
        if rejected:
            with self._rejects.open("a", encoding="utf-8") as lines:
                lines.writelines(self._reject_line(row) for row in rejected)
        if not self._dry_run:
            temporary = self._place.with_name(f".{self._place.name}.tmp")
            temporary.write_text(json.dumps({"file": fingerprint, "rows": done, "results": counts}), "utf-8")
            os.replace(temporary, self._place)

    def _reject_line(self, row: FileRow) -> str:
        place = {"file": self._path.name, "row": row.number, "field": row.field, "reason": row.fault}
        shown = {"item_id": row.item.item_id} if row.item else {}
        return json.dumps(place | shown, ensure_ascii=False) + "\n"


def _fingerprint(path: Path) -> str:
    """Of the file's content, so that another file of the same name is not taken for it.

    Raises:
        StartupError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StartupError(f"{path}: cannot be read: {error}") from None
