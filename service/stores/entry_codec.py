"""Log entries as bytes and back: the body of one entry (JSON), and whole snapshots (compressed JSON lines).

No pickle, no code: what cannot be read is skipped by the follower and refused by a snapshot's reader. It knows no
storage.
"""

import base64
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from service.model.checkpoint import ItemRecord
from service.stores.item_log import LogEntry

CHUNK_ENTRIES = 2000


def body_of(item: ItemRecord, content_hash: str, vector: bytes) -> str:
    """The body of a put."""
    fields: dict[str, Any] = {"item_id": item.item_id, "title": item.title, "description": item.description}
    fields |= {"attributes": dict(item.attributes), "content_hash": content_hash}
    return orjson.dumps(fields | {"vector": base64.b64encode(vector).decode()}).decode()


def parse_body(body: str | bytes) -> tuple[ItemRecord, str, bytes]:
    """The inverse of `body_of`.

    Raises:
        ValueError: it is none.
    """
    try:
        row = orjson.loads(body)
        item = ItemRecord(row["item_id"], row["title"], row["description"], row["attributes"])
        return item, str(row["content_hash"]), base64.b64decode(row["vector"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the body of an entry: {error!r}") from None


def entry_line(entry: LogEntry) -> bytes:
    """One entry as a line of JSON."""
    body = body_of(entry.item, entry.content_hash, entry.vector) if entry.item else ""
    head = [entry.version, entry.previous, entry.position, entry.op, entry.item_id, list(entry.sid), entry.since]
    return orjson.dumps([*head, entry.base, body])


def parse_line(line: bytes) -> LogEntry:
    """The inverse of `entry_line`.

    Raises:
        ValueError: it is none.
    """
    try:
        version, previous, position, op, item_id, sid, since, base, body = orjson.loads(line)
        item, content_hash, vector = parse_body(body) if body else (None, "", b"")
        return LogEntry(
            version, previous, position, op, item_id, item, content_hash, tuple(sid), since, vector, bool(base)
        )
    except TypeError as error:
        raise ValueError(f"not an entry: {error!r}") from None


def pack_chunks(entries: Sequence[LogEntry]) -> Iterator[bytes]:
    """A snapshot in chunks of some thousand entries."""
    for first in range(0, len(entries), CHUNK_ENTRIES):
        lines = b"\n".join(map(entry_line, entries[first : first + CHUNK_ENTRIES]))
        yield zlib.compress(lines, 1)


def unpack_chunks(chunks: Sequence[bytes], sha256: str) -> list[LogEntry]:
    """The inverse of `pack_chunks`.

    Raises:
        ValueError: the bytes are not those that ``sha256`` was made of.
    """
    if digest(chunks) != sha256:
        raise ValueError("its sha256 is not the one that was written down")
    return [parse_line(line) for chunk in chunks for line in zlib.decompress(chunk).split(b"\n")]


def digest(chunks: Sequence[bytes]) -> str:
    """The sha256 of a snapshot."""
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest()
