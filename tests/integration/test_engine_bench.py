"""The engine benchmark's smallest preset, end to end: real engines, every section, every contender."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
def test_the_smallest_preset_measures_every_section_and_goes_on_for_free(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest.cli", "engine", "--preset", "smoke", "--work", str(tmp_path / "work")]
    files = ["--json", str(tmp_path / "engine.json"), "--table", str(tmp_path / "engine.md")]
    ended = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    last = json.loads(ended.stdout.splitlines()[-1])
    assert last["complete"] is True

    rows = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert {row["section"] for row in rows} == {"agreement", "cells", "costs", "served", "constraint"}
    (agreement,) = [row for row in rows if row["section"] == "agreement"]
    assert agreement["same_ranking"] == agreement["users"]
    costs = {row["contender"]: row["cost_ms"] for row in rows if row["section"] == "cells"}
    assert set(costs) == {"ours", "line", "one_token", "vllm_beam", "torch_loop", "hf_generate"}
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in costs.values())
    (profile,) = [row["value"] for row in rows if row.get("figure") == "profile"]
    assert profile["linear"] > 0 and sum(profile.values()) == pytest.approx(1)
    judged = {one["target"]: one["verdict"] for one in last["targets"]}
    for target in ("prefix memory's share", "start until the first canary, s", "one insert visible after, ms"):
        assert judged[target] in {"pass", "short"}
    assert "## Where time goes" in (tmp_path / "engine.md").read_text()

    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0 and "starting" not in again.stderr
