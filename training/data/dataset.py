"""A catalogue and who used what when: the one form that every reader returns.

Items are numbered by their place in ``items``; sequences hold those numbers in time order. It knows nothing of SIDs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from training.data.defects import DefectReport

AttributeValue = str | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CatalogItem:
    """One item and what is known of it."""

    item_id: str
    title: str
    description: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interaction:
    """A user met an item (its number) at a time, in Unix seconds."""

    user_id: str
    item: int
    timestamp: float


@dataclass(frozen=True, slots=True)
class Dataset:
    """``sequences`` and ``timestamps`` map a user to item numbers and Unix seconds, oldest first, equally long."""

    name: str
    items: tuple[CatalogItem, ...]
    sequences: Mapping[str, tuple[int, ...]]
    timestamps: Mapping[str, tuple[float, ...]]
    license_note: str
    defects: DefectReport = field(default_factory=DefectReport)

    @property
    def num_interactions(self) -> int:
        """All events of all users."""
        return sum(len(sequence) for sequence in self.sequences.values())

    @property
    def fingerprint(self) -> str:
        """Sha256 over items and sequences; equal content, equal fingerprint."""
        digest = hashlib.sha256()
        for item in self.items:
            row = [item.item_id, item.title, item.description, sorted(item.attributes.items())]
            digest.update(json.dumps(row).encode())
        for user in sorted(self.sequences):
            digest.update(json.dumps([user, self.sequences[user], self.timestamps[user]]).encode())
        return digest.hexdigest()


def in_time_order(
    interactions: list[Interaction],
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[float, ...]]]:
    """Sequences and timestamps per user; events of equal time keep the order they came in."""
    by_user: dict[str, list[Interaction]] = {}
    for event in interactions:
        by_user.setdefault(event.user_id, []).append(event)
    ordered = {user: sorted(events, key=lambda event: event.timestamp) for user, events in by_user.items()}
    sequences = {user: tuple(event.item for event in events) for user, events in ordered.items()}
    return sequences, {user: tuple(event.timestamp for event in events) for user, events in ordered.items()}
