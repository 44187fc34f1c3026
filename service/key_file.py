"""The file of API keys: TOML, one ``[[api_keys]]`` table a client. Read again when it changes, written atomically.

A file that became unreadable keeps the keys that were read before: a typing error must not lock everybody out.
"""

import os
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from service.api_keys import KeyEntry, Scope, digest, new_key
from service.errors import SettingsError

LOOK_SECONDS = 1.0
MAX_ACTIVE = 2


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    api_keys: tuple[KeyEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made: this is the only time it is known."""

    key: str
    entry: KeyEntry


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """The clients of a file.

    Raises:
        SettingsError: it cannot be read or is not as described; two clients have one name or one key.
    """
    try:
        entries = _KeyFile.model_validate(tomllib.loads(path.read_text("utf-8"))).api_keys
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: not a readable key file: {error}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise SettingsError(f"{path}: {place}: {first['msg']}; `groundrec keys create` writes such files") from None
    check_keys(entries, str(path))
    return entries


def check_keys(entries: Sequence[KeyEntry], place: str) -> None:
    """Refuse clients that cannot be told apart.

    Raises:
        SettingsError: two have one name or one key.
    """
    names = [entry.name for entry in entries]
    digests = [each for entry in entries for each in entry.sha256]
    for what, values in (("name", names), ("sha256", digests)):
        if len(set(values)) < len(values):
            raise SettingsError(f"{place}: the same {what} occurs twice")


def write_keys(path: Path, entries: Sequence[KeyEntry]) -> None:
    """Replace the file, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(_table(entry) for entry in entries))
    os.replace(temporary, path)


def add_key(path: Path, name: str, scopes: Sequence[Scope], rate: float | None, burst: int | None) -> NewKey:
    """Make a key for a new client, or a second one for a known client, which keeps what it may do.

    Raises:
        SettingsError: the client has two keys already, is known and other scopes are asked for, or the file is bad.
    """
    entries = {entry.name: entry for entry in read_keys(path)} if path.exists() else {}
    key, known = new_key(), entries.get(name)
    if known is None:
        if not scopes:
            raise SettingsError(f"--scopes: {name} is a new client; say what it may do")
        fields = {"name": name, "scopes": scopes, "sha256": [digest(key)]}
        made = _entry({**fields, "requests_per_second": rate, "burst": burst})
    else:
        made = _entry(known.model_dump() | {"sha256": [*known.sha256, digest(key)]}, known, scopes)
    write_keys(path, [*(entry for entry in entries.values() if entry.name != name), made])
    return NewKey(key, made)


def retire_key(path: Path, name: str) -> KeyEntry:
    """Drop the older of a client's two keys, or the client with its only one.

    Raises:
        SettingsError: there is no such client, or the file is bad.
    """
    entries = {entry.name: entry for entry in read_keys(path)}
    if name not in entries:
        raise SettingsError(f"{path}: no client is called {name}; known: {', '.join(entries) or 'none'}")
    entry = entries.pop(name)
    if len(entry.sha256) == MAX_ACTIVE:
        entries[name] = entry.model_copy(update={"sha256": entry.sha256[1:]})
    write_keys(path, list(entries.values()))
    return entry


def watch_keys(path: Path, clock: Callable[[], float] = time.monotonic) -> Callable[[], tuple[KeyEntry, ...]]:
    """The file's clients as they are now; the file is looked at once a second at most.

    Raises:
        SettingsError: the file cannot be read at first.
    """
    kept, stamp, looked = read_keys(path), _stamp(path), clock()

    def current() -> tuple[KeyEntry, ...]:
        nonlocal kept, stamp, looked
        if clock() - looked < LOOK_SECONDS:
            return kept
        looked = clock()
        if (now := _stamp(path)) != stamp:
            stamp = now
            try:
                kept = read_keys(path)
            except SettingsError as error:
                structlog.get_logger().error("key_file_unreadable", fault=str(error))
        return kept

    return current


def _entry(fields: dict[str, object], known: KeyEntry | None = None, scopes: Sequence[Scope] = ()) -> KeyEntry:
    if known is not None and scopes and set(scopes) != set(known.scopes):
        raise SettingsError(f"--scopes: {known.name} has {','.join(known.scopes)}; a second key has the same")
    if known is not None and len(known.sha256) >= MAX_ACTIVE:
        raise SettingsError(f"{known.name} has two keys; drop the older one with `groundrec keys retire` first")
    try:
        return KeyEntry.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise SettingsError(f"{'.'.join(map(str, first['loc'])) or 'key'}: {first['msg']}") from None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _table(entry: KeyEntry) -> str:
    """Names, scopes and digests hold nothing that TOML would want escaped."""
    lines = [
        "[[api_keys]]",
        f'name = "{entry.name}"',
        f"scopes = {_list(entry.scopes)}",
        f"sha256 = {_list(entry.sha256)}",
    ]
    if entry.requests_per_second is not None:
        lines.append(f"requests_per_second = {entry.requests_per_second}")
    if entry.burst is not None:
        lines.append(f"burst = {entry.burst}")
    return "\n".join(lines) + "\n"


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"
