"""What was posted to one model's catalogue, posted to another's: its SIDs are other SIDs, its items must be the same.

A checkpoint with another quantiser follows an item log of its own. Before it serves, every item that was posted,
changed or deleted since the other checkpoint is posted to it, in the order in which that happened. Repeating it changes
nothing.
"""

from service.catalog import Catalog
from service.ingest import Ingest

BATCH = 100


async def carry_over(source: Catalog, target: Ingest) -> int:
    """Post and delete in ``target`` what ``source`` has beyond its checkpoint; returns how many items that were.

    Raises:
        StorageError: the other log did not acknowledge; what was carried over so far stays.
        DeadlineError: the same, for want of time.
    """
    entries = list(source.log_state().values())
    posted = [entry.item for entry in entries if entry.op == "put" and entry.item is not None]
    for first in range(0, len(posted), BATCH):
        await target.post(posted[first : first + BATCH])
    for entry in entries:
        if entry.op == "delete":
            await target.delete(entry.item_id)
    return len(entries)
