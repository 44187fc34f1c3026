"""Histories as the service loads them, a JSON line a user: ``{"user_id", "items": [[item_id, timestamp], ...]}``.

All interactions are there, the held-out ones too: the service starts from what users really did.
"""

import json
import os
from pathlib import Path

from training.data import Dataset

HISTORIES = "histories.jsonl"


def write_histories(dataset: Dataset, folder: Path) -> Path:
    """Write ``histories.jsonl`` as a whole."""
    path = folder / HISTORIES
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        for user, sequence in dataset.sequences.items():
            times = dataset.timestamps[user]
            events = [[dataset.items[item].item_id, time] for item, time in zip(sequence, times, strict=True)]
            file.write(json.dumps({"user_id": user, "items": events}, ensure_ascii=False) + "\n")
    os.replace(temporary, path)
    return path
