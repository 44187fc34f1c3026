"""Reads a file of histories, one user a line: ``{"user_id": "42", "items": [["item-7", 1700000000], ...]}``.

A defect is reported with file and line and ends the load. Loading is idempotent, so a mended file is loaded again.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from service.errors import StartupError
from service.stores.base import HistoryEvent


async def read_histories(
    path: Path, progress: Callable[[int], None] = lambda count: None
) -> AsyncIterator[tuple[str, Sequence[HistoryEvent]]]:
    """Users with their events; ``progress`` is told the bytes of each line.

    Raises:
        StartupError: the file cannot be read, or a line is not as described.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield parse_history(line, f"{path}:{number}")
                progress(len(line))
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror or error}") from None


def parse_history(line: bytes, place: str) -> tuple[str, list[HistoryEvent]]:
    """One line.

    Raises:
        StartupError: it is not a history.
    """
    try:
        row = json.loads(line)
        user_id, items = row["user_id"], row["items"]
        events = [HistoryEvent(item_id, float(timestamp)) for item_id, timestamp in items]
        for name in (user_id, *(event.item_id for event in events)):
            str(name).encode()  # a lone surrogate cannot be stored
    except KeyError as error:
        raise StartupError(f"{place}: field {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise StartupError(f'{place}: not {{"user_id": .., "items": [[item_id, seconds], ..]}}: {error}') from None
    if not isinstance(user_id, str) or not all(isinstance(event.item_id, str) for event in events):
        raise StartupError(f"{place}: user_id and item ids must be strings")
    if not user_id or not all(event.item_id for event in events):
        raise StartupError(f"{place}: user_id and item ids must not be empty")
    if not all(math.isfinite(event.timestamp) for event in events):
        raise StartupError(f"{place}: a time must be a finite number of seconds")
    return user_id, events
