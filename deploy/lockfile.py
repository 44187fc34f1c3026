"""The header of a lock: which requirements it was resolved from, and what it then held.

Standard library only, because it runs before anything is installed. It knows nothing about resolving (lock.sh asks uv)
nor about installing (venv.sh). Two digests, so that both an edited pyproject.toml and an edited lock are seen.
"""

import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path

HEADER = """\
# Made by deploy/lock.sh; do not edit by hand.
# CPython 3.11, Linux x86_64; extras: {extras}
# requirements-sha256: {requirements}
# body-sha256: {body}
"""
FIELD = re.compile(r"^# (requirements|body)-sha256: ([0-9a-f]{64})$", re.MULTILINE)


def build_requirements(pyproject: Path) -> list[str]:
    """What the build backend needs; the project is installed without build isolation, so it belongs in each lock."""
    return list(tomllib.loads(pyproject.read_text("utf-8"))["build-system"]["requires"])


def requirements_digest(pyproject: Path) -> str:
    """Digest of the tables that decide a resolution, and of nothing else in pyproject.toml."""
    document = tomllib.loads(pyproject.read_text("utf-8"))
    project = document["project"]
    tables = {
        "build": document["build-system"]["requires"],
        "python": project["requires-python"],
        "dependencies": project["dependencies"],
        "extras": project["optional-dependencies"],
        "uv": document.get("tool", {}).get("uv", {}),
    }
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def split(text: str) -> tuple[str, str]:
    """Header comment and body of a lock."""
    lines = text.splitlines(keepends=True)
    start = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:start]), "".join(lines[start:])


def stamp(pyproject: Path, lock: Path, extras: str) -> None:
    """Put the header in front of a freshly resolved lock."""
    body = split(lock.read_text("utf-8"))[1]
    header = HEADER.format(
        extras=extras,
        requirements=requirements_digest(pyproject),
        body=hashlib.sha256(body.encode()).hexdigest(),
    )
    lock.write_text(header + body, "utf-8")


def defect(pyproject: Path, lock: Path) -> str | None:
    """What is wrong with a lock, in words, or None."""
    if not lock.is_file():
        return "is missing"
    header, body = split(lock.read_text("utf-8"))
    fields = dict(FIELD.findall(header))
    if fields.get("requirements") != requirements_digest(pyproject):
        return "does not match the dependencies in pyproject.toml"
    if fields.get("body") != hashlib.sha256(body.encode()).hexdigest():
        return "was edited after it was made"
    if "://" in body:
        return "names a host"
    if not re.search(r"^setuptools==", body, re.MULTILINE):
        return "lacks setuptools, which builds the project"
    return None


def main(arguments: list[str]) -> int:
    """`build PYPROJECT`, `stamp PYPROJECT LOCK EXTRAS` or `check PYPROJECT LOCK...`."""
    command, pyproject, *rest = arguments
    if command == "build":
        print("\n".join(build_requirements(Path(pyproject))))
        return 0
    if command == "stamp":
        stamp(Path(pyproject), Path(rest[0]), rest[1])
        return 0
    defects = [(path, found) for path in map(Path, rest) if (found := defect(Path(pyproject), path))]
    for path, found in defects:
        print(f"deploy/locks/{path.name} {found}: run deploy/lock.sh", file=sys.stderr)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
