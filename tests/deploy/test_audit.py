"""Both audits, offline and by pip-audit, find what an advisory names, nothing else, and tell what they did not see."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def advisory(name: str = "PYSEC-1", package: str = "FastAPI", **part: Any) -> dict[str, Any]:
    affected = {"package": {"ecosystem": "PyPI", "name": package}, **part}
    return {"id": name, "aliases": ["CVE-1"], "summary": "a hole", "affected": [affected]}


def between(introduced: str, **end: str) -> dict[str, Any]:
    return {
        "ranges": [
            {"type": "ECOSYSTEM", "events": [{"introduced": introduced}, end] if end else [{"introduced": introduced}]}
        ]
    }


def audit(folder: Path, *documents: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    export = folder / "all.zip"
    with zipfile.ZipFile(export, "w") as archive:
        for number, document in enumerate(documents):
            archive.writestr(f"{number}.json", json.dumps(document))
    return subprocess.run(
        ["bash", str(ROOT / "deploy" / "audit.sh"), "--osv", str(export), "serve-cpu"],
        env={**os.environ, "GROUNDREC_DEV_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "part",
    [
        between("0"),
        between("0", fixed="9999"),
        between("0", last_affected="9999"),
        {"versions": ["0.0.1", "not a version", "2.13.0"]},
    ],
)
def test_a_locked_version_that_an_advisory_names_is_found(tmp_path: Path, part: dict[str, Any]) -> None:
    answer = audit(tmp_path, advisory(package="torch", **part))
    assert answer.returncode == 1, answer.stderr
    assert answer.stdout.startswith("torch 2.13.0: PYSEC-1")
    assert "1 known holes" in answer.stderr


@pytest.mark.parametrize(
    "document",
    [
        advisory(package="torch", **between("0", fixed="2.13.0")),
        advisory(package="torch", **between("0", last_affected="2.12.9")),
        advisory(package="torch", **between("9999")),
        advisory(package="left-pad", **between("0")),
        {**advisory(package="torch", **between("0")), "withdrawn": "2026-01-01T00:00:00Z"},
        {**advisory(), "affected": [{"package": {"ecosystem": "npm", "name": "torch"}, **between("0")}]},
    ],
    ids=["fixed", "older only", "newer only", "another package", "withdrawn", "another ecosystem"],
)
def test_what_does_not_touch_the_lock_is_not(tmp_path: Path, document: dict[str, Any]) -> None:
    answer = audit(tmp_path, document)
    assert answer.returncode == 0, answer.stdout
    assert not answer.stdout


def test_names_are_compared_as_the_index_does(tmp_path: Path) -> None:
    assert audit(tmp_path, advisory(package="Prometheus_Client", **between("0"))).returncode == 1


def test_every_ignored_advisory_has_a_reason() -> None:
    lines = (ROOT / "deploy" / "audit_ignore.txt").read_text("utf-8").splitlines()
    assert all(line.startswith("#") or ("#" in line and line.partition("#")[2].strip()) for line in lines if line)


def test_a_missing_export_is_named() -> None:
    answer = subprocess.run(
        ["bash", str(ROOT / "deploy" / "audit.sh"), "--osv", "/nowhere.zip"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert "--osv /nowhere.zip: no such file" in answer.stderr


def audit_by_service(folder: Path, *packages: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """deploy/audit.sh with a Python whose pip-audit gives this answer; everything else is the real one."""
    (folder / "answer.json").write_text(json.dumps({"dependencies": packages}))
    python = folder / "python"
    answer = f'for last in "$@"; do :; done; cp "{folder}/answer.json" "$last"; exit 1'
    python.write_text(f'#!/usr/bin/env bash\n[[ $2 == pip_audit ]] || exec "{sys.executable}" "$@"\n{answer}\n')
    python.chmod(0o755)
    command = ["bash", str(ROOT / "deploy" / "audit.sh"), "serve-cpu"]
    environment = {**os.environ, "GROUNDREC_DEV_PYTHON": str(python)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


CLEAN = {"name": "torch", "version": "2.13.0", "vulns": []}
UNKNOWN = {"name": "homemade", "skip_reason": "Dependency not found on PyPI: homemade (1.0)"}
HOLED = {
    "name": "jinja2",
    "version": "3.0",
    "vulns": [{"id": "PYSEC-2", "fix_versions": ["3.1"], "description": "bad"}],
}


def test_a_package_that_the_service_does_not_know_is_named_and_is_no_hole(tmp_path: Path) -> None:
    answer = audit_by_service(tmp_path, CLEAN, UNKNOWN)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("not audited: homemade (")
    assert "1 of 2 packages audited, 0 known holes" in answer.stdout


def test_a_hole_fails_the_audit_beside_packages_that_are_not_known(tmp_path: Path) -> None:
    answer = audit_by_service(tmp_path, UNKNOWN, HOLED)
    assert answer.returncode == 1
    assert "jinja2 3.0: PYSEC-2 (fixed in 3.1) bad" in answer.stdout
    assert "not audited: homemade" in answer.stdout


def test_an_index_without_advisories_is_no_clean_bill(tmp_path: Path) -> None:
    answer = audit_by_service(tmp_path, UNKNOWN, UNKNOWN)
    assert answer.returncode == 3
    assert "not audited: any of 2 packages" in answer.stdout and "--osv" in answer.stdout


def test_an_audit_that_gives_no_answer_fails(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\necho "no network" >&2\nexit 1\n')
    python.chmod(0o755)
    command = ["bash", str(ROOT / "deploy" / "audit.sh"), "serve-cpu"]
    environment = {**os.environ, "GROUNDREC_DEV_PYTHON": str(python)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 3
    assert "no network" in answer.stderr and "pip-audit gave no answer" in answer.stderr
