"""Locked packages against an export of the OSV database: the audit for places that reach no advisory service.

usage: python audit_osv.py all.zip IGNORED LOCK...     exit 1 when a hole is known

The export is a zip of one JSON document per advisory (schema at ossf.github.io/osv-schema). A version is hit when an
advisory lists it, or when it lies between ``introduced`` and ``fixed`` (or at most at ``last_affected``).
"""

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One hole in one locked package."""

    package: str
    version: str
    advisory: str
    fixed_in: str
    summary: str


def locked(lock: Path) -> dict[str, Version]:
    """Package versions by canonical name; a local version (+cpu) is left out, advisories know none."""
    pairs = PINNED.findall(lock.read_text("utf-8"))
    return {canonicalize_name(name): Version(Version(version).public) for name, version in pairs}


def ignored(file: Path) -> set[str]:
    """Advisories that were looked at."""
    lines = (line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines())
    return {line for line in lines if line}


def advisories(export: Path) -> Iterator[dict[str, Any]]:
    """Every advisory of the export that was not withdrawn."""
    with zipfile.ZipFile(export) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                document: dict[str, Any] = json.loads(archive.read(name))
                if "withdrawn" not in document:
                    yield document


def findings(packages: Mapping[str, Version], documents: Iterator[dict[str, Any]], skip: set[str]) -> list[Finding]:
    """What is known against ``packages``, each advisory once per package."""
    found = set()
    for document in documents:
        names = {document["id"], *document.get("aliases", [])}
        for part in [] if names & skip else document.get("affected", []):
            package = part.get("package", {})
            version = packages.get(canonicalize_name(package.get("name", "")))
            if package.get("ecosystem") == "PyPI" and version is not None and is_hit(part, version):
                summary = str(document.get("summary") or document.get("details", ""))[:100]
                name = canonicalize_name(package["name"])
                found.add(Finding(name, str(version), document["id"], ", ".join(fixes(part)), summary))
    return sorted(found)


def is_hit(part: Mapping[str, Any], version: Version) -> bool:
    """Whether ``version`` is affected by one part of an advisory."""
    if any(same(text, version) for text in part.get("versions", [])):
        return True
    ranges = [each for each in part.get("ranges", []) if each.get("type") == "ECOSYSTEM"]
    return any(in_range(each.get("events", []), version) for each in ranges)


def in_range(events: list[dict[str, str]], version: Version) -> bool:
    """Whether a range's events leave ``version`` affected: the last one at or below it decides."""
    affected = False
    for kind, text in sorted((next(iter(event.items())) for event in events), key=lambda item: parsed(item[1])):
        if kind == "introduced" and parsed(text) <= version:
            affected = True
        elif (kind == "fixed" and parsed(text) <= version) or (kind == "last_affected" and parsed(text) < version):
            affected = False
    return affected


def fixes(part: Mapping[str, Any]) -> list[str]:
    """The versions that mend it."""
    events = (event for each in part.get("ranges", []) for event in each.get("events", []))
    return sorted({event["fixed"] for event in events if "fixed" in event})


def same(text: str, version: Version) -> bool:
    """Whether ``text`` is that version; advisories list a few that are none at all."""
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def parsed(text: str) -> Version:
    """A version of a range; ``0`` is its beginning, and one that cannot be read lies at the beginning too."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    export, ignore, *locks = map(Path, arguments)
    packages: dict[str, Version] = {}
    for lock in locks:
        packages |= locked(lock if lock.suffix else lock.with_suffix(".txt"))
    found = findings(packages, advisories(export), ignored(ignore))
    for each in found:
        print(
            f"{each.package} {each.version}: {each.advisory} (fixed in {each.fixed_in or 'no version'}) {each.summary}"
        )
    print(f"{len(packages)} packages, {len(found)} known holes", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
