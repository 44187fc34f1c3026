"""Two processes train what one trains: the same losses and weights, after a kill too, averaged or sharded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.training.tiny_run import TinyWorld
from training.pipeline import Pipeline
from training.processes import Processes, Share

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.training.several_processes"
ALONE = [sys.executable, "-m", MODULE]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", MODULE]
SHIPPED = yaml.safe_load((ROOT / "training/accelerate/fsdp.yaml").read_text())["fsdp_config"]
# what `accelerate launch` makes of the configuration
SHARDED = {"ACCELERATE_USE_FSDP": "true"} | {key.upper(): str(value).lower() for key, value in SHIPPED.items()}


def start(command: list[str], out: Path, more: dict[str, str] | None = None, **wanted: Any) -> int:
    out.mkdir(exist_ok=True)
    settings = {"dtype": "float32", "weight": 0.5, "out": str(out), **wanted}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} | (more or {})
    done = subprocess.run(
        [*command, json.dumps(settings)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 or "kill_at" in wanted, done.stderr
    return done.returncode


def losses(out: Path, rank: int = 0) -> list[float]:
    found: list[float] = json.loads((out / f"losses{rank}.json").read_text())["losses"]
    return found


def weights(out: Path, rank: int = 0) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(out / f"weights{rank}.safetensors")
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    start(ALONE, out)
    return out


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("averaged")
    start(TWO, out)
    return out


def test_two_processes_end_where_one_ends(alone: Path, averaged: Path) -> None:
    assert np.allclose(losses(averaged), losses(alone), atol=1e-4)
    assert losses(averaged) == losses(averaged, 1)
    assert furthest(weights(averaged), weights(alone)) < 1e-3
    assert equal(weights(averaged), weights(averaged, 1))


def test_a_killed_run_of_two_processes_ends_with_the_same_weights(averaged: Path, tmp_path: Path) -> None:
    assert start(TWO, tmp_path, kill_at=8) != 0
    assert (tmp_path / "state.safetensors").exists()
    start(TWO, tmp_path)
    assert losses(tmp_path) == losses(averaged)
    assert equal(weights(tmp_path), weights(averaged))
    assert not (tmp_path / "state.safetensors").exists()


def test_bfloat16_gradients_travel_well_enough(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    start(ALONE, one, dtype="bfloat16")
    start(TWO, two, dtype="bfloat16")
    assert np.allclose(losses(two), losses(one), rtol=0.03)
    assert equal(weights(two), weights(two, 1))


def test_sharded_processes_end_where_one_ends_and_go_on_after_a_kill(alone: Path, tmp_path: Path) -> None:
    assert start(TWO, tmp_path, SHARDED, kill_at=8) != 0
    start(TWO, tmp_path, SHARDED)
    assert np.allclose(losses(tmp_path), losses(alone), atol=1e-4)
    assert furthest(weights(tmp_path), weights(alone)) < 1e-3
    assert equal(weights(tmp_path), weights(tmp_path, 1))


def train(world: TinyWorld, out: Path, folder: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    recipe = world.toml(folder / "recipe.toml", **changes)
    command = [*TWO[:-1], "service", "train", "--recipe", str(recipe), "--out", str(out), "--cache-dir", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)


def test_a_whole_run_of_two_processes_is_the_run_of_one_and_skips_what_stands(
    world: TinyWorld, finished: Pipeline, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = train(world, out, tmp_path)
    assert done.returncode == 0, done.stderr
    stage = json.loads((out / "stages/finetune/finetune.json").read_text())
    expected = finished.finetuned.read_json("finetune.json")
    assert stage["final_loss"] == pytest.approx(expected["final_loss"], abs=1e-3)
    one, two = (load_file(run / "stages/finetune/weights.safetensors") for run in (finished.run.path, out))
    assert furthest(one, two) < 1e-2
    again = train(world, out, tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finetune: done earlier") == 1


def test_a_gate_that_is_missed_ends_both_processes_with_one_line(world: TinyWorld, tmp_path: Path) -> None:
    ended = train(world, tmp_path / "run", tmp_path, sids={"min_usage": 1.0, "codes": 64})
    assert ended.returncode != 0
    lines = [line for line in ended.stderr.splitlines() if "error:" in line and "torch" not in line]
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("error: ")


def test_shares_cover_a_batch_once_and_their_scaled_means_average_to_its_mean() -> None:
    terms = [1.0, 2.0, 4.0, 8.0, 16.0]
    shares = [Share(rank, 3) for rank in range(3)]
    assert sorted(term for share in shares for term in share.of(terms)) == terms
    scaled = [share.scale(len(share.of(terms)), len(terms)) * np.mean(share.of(terms)) for share in shares]
    assert np.mean(scaled) == pytest.approx(np.mean(terms))


def test_a_share_may_be_empty_and_then_weighs_nothing() -> None:
    assert Share(2, 3).of([1, 2]) == []
    assert Share(2, 3).scale(0, 2) == 0


def test_one_process_speaks_to_itself() -> None:
    assert Processes().sum([1.5, 2.0]) == [1.5, 2.0]
    assert Processes().from_first("done") == "done"
