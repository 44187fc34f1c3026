"""API keys: who may do what, and how often. Only digests are kept, so a leaked file opens nothing.

A key is 32 random bytes, so a plain SHA-256 of it cannot be guessed back and needs no salt or stretching. A client has
one or two active digests: the second lets it change over to a new key before the old one is retired. It knows no HTTP.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

KEY_PREFIX = "groundrec_"
MAX_KEY_CHARS = 256

Scope = Literal["recommend", "events", "items", "admin"]
SCOPES: tuple[Scope, ...] = ("recommend", "events", "items", "admin")

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class KeyEntry(BaseModel):
    """One client, as settings and key file write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    sha256: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=2)]
    requests_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    burst: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _burst_needs_a_rate(self) -> "KeyEntry":
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError("burst needs requests_per_second")
        return self


@dataclass(frozen=True, slots=True)
class Client:
    """Who a key belongs to."""

    name: str
    scopes: frozenset[str]
    requests_per_second: float | None = None
    burst: int | None = None

    def may(self, scope: str) -> bool:
        """Whether the client has the scope; ``admin`` has all."""
        return scope in self.scopes or "admin" in self.scopes


class KeyRing:
    """Finds the client of a key. ``entries`` is called for each look-up, so that a changed file takes effect."""

    def __init__(self, entries: Callable[[], Sequence[KeyEntry]]) -> None:
        self._entries = entries
        self._known: Sequence[KeyEntry] = ()
        self._digests: list[tuple[bytes, Client]] = []

    def find(self, key: str) -> Client | None:
        """The client, in a time that does not tell how near a wrong key came."""
        entries = self._entries()
        if entries is not self._known:
            self._known, self._digests = entries, list(_digests(entries))
        given, found = digest(key[:MAX_KEY_CHARS]).encode(), None
        for known, client in self._digests:
            if hmac.compare_digest(known, given):
                found = client
        return found


def new_key() -> str:
    """A key nobody can guess: 256 bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _digests(entries: Sequence[KeyEntry]) -> "list[tuple[bytes, Client]]":
    clients = [
        (entry, Client(entry.name, frozenset(entry.scopes), entry.requests_per_second, entry.burst))
        for entry in entries
    ]
    return [(each.encode(), client) for entry, client in clients for each in entry.sha256]
