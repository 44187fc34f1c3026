"""What pip-audit's answer about one lock is worth: holes, packages that were not audited, or no audit at all.

usage: python audit_verdict.py ANSWER.json     exit 0: no hole known; 1: a hole is known; 3: nothing was audited

pip-audit passes over packages that the advisory service does not know and calls the rest clean; with ``--strict`` it
stops at the first of them and says nothing about the rest. Here each is named, holes count beside them, and a service
that knows none of the packages (a mirror without advisories) is no clean bill. Standard library only.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CLEAN, HOLES, NOTHING_AUDITED = 0, 1, 3


def verdict(packages: Sequence[dict[str, Any]]) -> tuple[int, list[str]]:
    """Exit code and lines for ``dependencies`` of pip-audit's JSON: one line per hole and per package not audited."""
    unknown = [package for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        return NOTHING_AUDITED, [
            f"not audited: any of {len(packages)} packages; the index that pip uses tells no advisories."
            " Download OSV's export of the ecosystem PyPI elsewhere and name it: --osv all.zip"
        ]
    holes = [hole for package in packages for hole in _holes(package)]
    lines = holes + [f"not audited: {package['name']} ({package['skip_reason']})" for package in unknown]
    summary = f"{len(packages) - len(unknown)} of {len(packages)} packages audited, {len(holes)} known holes"
    return (HOLES if holes else CLEAN), [*lines, summary]


def _holes(package: dict[str, Any]) -> list[str]:
    """A line per hole of one package."""
    lines = []
    for hole in package.get("vulns", ()):
        fixed = ", ".join(hole.get("fix_versions", ())) or "no version"
        lines.append(
            f"{package['name']} {package['version']}: {hole['id']} (fixed in {fixed}) {_summary(hole)}".strip()
        )
    return lines


def _summary(hole: dict[str, Any]) -> str:
    return " ".join(str(hole.get("description", "")).split())[:100]


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    code, lines = verdict(json.loads(Path(arguments[0]).read_text("utf-8"))["dependencies"])
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
