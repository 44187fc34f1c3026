"""The memory's share of training time is taken in turns, with and without it, inside each round."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest import CaptureFixture
from typer.testing import CliRunner

from loadtest.bench_prefix_memory import added_time, own_cpu_seconds
from loadtest.cli import app
from loadtest.training_contender import Clock, codes, contender, prefix_memory
from service.model.prefix_memory import PrefixMemory
from service.model.semantic_ids import SidSpace


def test_a_share_is_the_median_of_the_rounds() -> None:
    without = [{"cpu_seconds": cpu, "wall_seconds": 2.0} for cpu in (1.0, 2.0, 4.0)]
    memory = [{"cpu_seconds": cpu, "wall_seconds": 1.0} for cpu in (1.1, 2.04, 4.04)]
    told = added_time(without, memory)
    assert told["cpu_seconds"] == pytest.approx(0.02)
    assert told["wall_seconds"] == pytest.approx(-0.5)
    assert told["cpu_by_round"] == [0.1, 0.02, 0.01]


@pytest.mark.parametrize(("rows", "sparse"), [(512, False), (200_000, True)])
def test_the_memory_that_is_timed_knows_its_items(rows: int, sparse: bool) -> None:
    memory = prefix_memory(SidSpace(3, 256, 0), rows)
    assert memory.config.rows == (256, min(rows, 256**2), rows)
    assert memory.sparse_gradients is sparse
    assert all(vector.any(-1).all() for vector in memory.order_vectors(torch.from_numpy(codes())))


def test_steps_with_a_memory_are_taken_and_timed(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    with pytest.raises(SystemExit):
        contender("memory:512")(1, Clock(steps=1))
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"] == 16 * 69
    assert told["cpu_seconds"] > 0


@pytest.mark.parametrize("rows", [512, 200_000])
def test_the_memory_alone_is_timed_and_really_trained(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PrefixMemory] = []

    def kept(*given: Any) -> PrefixMemory:
        made.append(prefix_memory(*given))
        return made[-1]

    monkeypatch.setattr("loadtest.bench_prefix_memory.prefix_memory", kept)
    assert own_cpu_seconds(rows) > 0
    fresh = prefix_memory(SidSpace(3, 256, 0), rows)
    assert made[0].w_out.weight.any()
    assert all((new != old).any() for new, old in zip(made[0].tables, fresh.tables, strict=True))


def test_the_command_measures_without_and_with_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(names: Sequence[str], *_: int) -> dict[str, list[dict[str, float]]]:
        cost = {"ours": 1.0, "memory:0": 1.05, "memory:512": 1.01, "memory:2000000": 1.2}
        return {name: [{"tokens": 10.0, "cpu_seconds": cost[name], "wall_seconds": cost[name]}] for name in names}

    monkeypatch.setattr("loadtest.bench_prefix_memory.in_turns", rounds)
    monkeypatch.setattr("loadtest.bench_prefix_memory.own_cpu_seconds", {512: 0.01, 2_000_000: 0.05}.get)
    target = tmp_path / "figures.json"
    result = CliRunner().invoke(app, ["prefix-memory", "--rows", "512,2000000", "--json", str(target)])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert json.loads(target.read_text()) == figures
    assert figures["added"]["memory:512"]["cpu_seconds"] == pytest.approx(0.01)
    assert figures["added"]["memory:0"]["cpu_by_round"] == [0.05] * 4  # the noise, over four starts
    assert figures["alone"]["memory:2000000"] == {"cpu_ms_a_step": 50.0, "share_of_step": 0.1}  # a step takes 0.5 s
    assert not figures["reached"]
    result = CliRunner().invoke(app, ["prefix-memory", "--rows", "512"])
    assert json.loads(result.stdout.splitlines()[-1])["reached"]  # whatever the noise
