"""A run goes on where it ended, contenders take turns, and the table and the trace say what was measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.engine.bench import Bench, commit, write_results
from loadtest.engine.contender import Answer, Batch
from loadtest.engine.cpu_time import tree_cpu_seconds, tree_rss_mib
from loadtest.engine.grid import Cell, World
from loadtest.engine.process import Run
from loadtest.engine.rows import Rows, engine_digest
from loadtest.engine.sections import Arena, WrongAnswerError, measure_cell, rotated
from loadtest.engine.sorted_sids import SortedSids
from loadtest.engine.table import markdown
from loadtest.engine.targets import judge
from loadtest.engine.trace_shares import part_of, shares
from service.errors import StartupError
from service.model.semantic_ids import SidSpace
from tests.unit.loadtest.engine_fakes import options

CELL = Cell(World("tiny", 4), "eager", 1, 2, 9, ("ours", "line", "one_token"), rounds=3)
CODES = np.array([[0, 1, 1], [0, 3, 0], [2, 2, 2], [3, 0, 1]])
SPACE = SidSpace(3, 4, 10)


class FakeArena(Arena):
    """An arena whose contenders answer at once; the n-th run costs n seconds."""

    asked: list[str] = []
    wrong = False

    def run(self, contender: str, batch: Batch) -> Run:
        self.asked.append(contender)
        sid = (1, 1, 1) if self.wrong else (0, 1, 1)
        answers = [Answer((sid, (2, 2, 2)), (0.0, -1.0)) for _ in batch.prompts] if contender != "line" else []
        return Run(float(len(self.asked)), 2.0, 100.0, tuple(answers))

    def prompts(self, users: int, tokens: int, seed: int) -> list[list[int]]:
        return [[seed] * tokens] * users


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> FakeArena:
    monkeypatch.setattr(FakeArena, "asked", [])
    checkpoint: Any = None
    return FakeArena(checkpoint, SortedSids(CODES, SPACE), CODES, {})


def test_contenders_take_turns_and_each_goes_first_once(arena: FakeArena) -> None:
    rows = measure_cell(arena, CELL)
    assert arena.asked == ["ours", "line", "one_token", "line", "one_token", "ours", "one_token", "ours", "line"]
    assert {row["contender"]: row["cost_ms"] for row in rows}["ours"] == [1000.0, 6000.0, 8000.0]
    assert rotated("abc", 4) == ["b", "c", "a"]


def test_a_cell_of_wrong_answers_gives_no_rows(arena: FakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeArena, "wrong", True)
    with pytest.raises(WrongAnswerError):
        measure_cell(arena, CELL)


def test_rows_are_found_again_by_the_same_engine_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Rows(path, "aaa").add("cells", "one", [{"contender": "ours"}, {"contender": "line"}])
    Rows(path, "bbb").add("cells", "two", [{"contender": "ours"}])
    again = Rows(path, "aaa")
    assert again.has("cells", "one") and not again.has("cells", "two") and not again.has("costs", "one")
    assert [row["contender"] for row in again.of("cells")] == ["ours", "line"]


def test_a_damaged_file_of_results_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"section"')
    with pytest.raises(StartupError, match="rows.jsonl"):
        Rows(path, "aaa")


def test_the_engines_digest_follows_its_source(tmp_path: Path) -> None:
    folder = tmp_path / "service/engine"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("a = 1")
    before = engine_digest(tmp_path)
    (tmp_path / "service/app.py").write_text("something else")
    assert engine_digest(tmp_path) == before
    (folder / "a.py").write_text("a = 2")
    assert engine_digest(tmp_path) != before


def finished(bench: Bench, preset_cells: Sequence[Cell]) -> None:
    for cell in preset_cells:
        place = {"world": cell.world.name, "mode": cell.mode, "batch": cell.batch, "beam": cell.beam}
        bench._rows.add(
            "cells",
            cell.name,
            [
                {**place, "prompt": cell.prompt, "contender": name, "cost_ms": [2.0], "wall_ms": [1.0], "rss_mib": 1}
                | ({"illegal_share": 0.25} if name == "vllm_beam" else {})
                for name in cell.contenders
            ],
        )


def test_a_run_out_of_time_begins_nothing_and_says_that_it_is_not_complete(tmp_path: Path) -> None:
    summary = Bench(options(work=tmp_path, minutes=0)).run()
    assert summary["complete"] is False and summary["rows"] == []


def test_a_finished_part_is_not_measured_again_and_results_are_written(tmp_path: Path) -> None:
    bench = Bench(options(work=tmp_path, only=("cells",)))
    finished(bench, bench._preset.cells)
    again = Bench(options(work=tmp_path, only=("cells",)))
    summary = again.run()  # would start children if a cell were missing
    assert summary["complete"] is True
    json_file, table_file = tmp_path / "results/engine.json", tmp_path / "results/engine.md"
    line = write_results(again, summary, json_file, table_file)
    assert "rows" not in json.loads(line) and json.loads(line)["targets"]
    assert len(json.loads(json_file.read_text())["rows"]) == 6
    assert "| tiny-2000-float32 | eager | 2 | 8 | 60 | 2 | 1 | 1.00× | 1.00× | 1.00× (25%) |" in table_file.read_text()


def test_the_table_has_every_section_that_was_measured() -> None:
    rows: list[dict[str, Any]] = [
        {"section": "agreement", "name": "a", "cell": "c", "users": 4, "beam": 20, "same_ranking": 4}
        | {"largest_difference": 1e-5},
        {"section": "costs", "name": "c", "mode": "eager", "figure": "profile", "value": {"linear": 0.6, "rest": 0.4}},
        {"section": "costs", "name": "c", "mode": "eager", "figure": "prefill_saved", "value": 0.9},
        {"section": "constraint", "name": "5", "items": 10**6, "beam_ms": [2.0], "unconstrained_ms": [1.5]}
        | {"bytes_per_item": 20.0, "build_s": 1.0},
    ]
    text = markdown(rows, judge(rows, ["eager"], "main"), {"commit": "abc"})
    for part in ("- commit: abc", "ranks 4 of 4", "| linear | 60.0% |", "| 1,000,000 | 2.00 | 1.50 |", "| pass |"):
        assert part in text


def event(name: str, at: float, dur: float, kind: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": at, "dur": dur, "tid": 1}


def frame(name: str, at: float, dur: float) -> dict[str, Any]:
    return event(name, at, dur, "python_function")


def test_a_traces_time_goes_to_the_operator_or_the_nearest_frame_that_is_known() -> None:
    trace = {
        "traceEvents": [
            frame("main.py(1): run", 0, 100),
            frame("vllm/model_executor/layers/layernorm.py(9): forward", 0, 10),
            event("aten::mul", 2, 6),
            event("aten::linear", 10, 30),
            event("aten::addmm", 12, 28),
            frame("service/model/trie.py(5): expand", 50, 20),
            event("aten::index", 55, 10),
            frame("service/model/prefix_memory.py(5): item_embeddings", 80, 5),
            event("aten::linear", 81, 4),
            {"ph": "X", "cat": "cpu_op", "name": "aten::other_thread", "ts": 0, "dur": 500, "tid": 2},
        ]
    }
    assert shares(trace) == pytest.approx(
        {"rest": 0.35, "linear": 0.30, "trie": 0.20, "norms, rotary, activations": 0.10, "prefix memory": 0.05}
    )


def test_what_the_beams_attention_multiplies_is_attention() -> None:
    attention = part_of("/x/service/engine/vllm_attention.py(9): shared_prefix_attention", "python_function", "rest")
    assert attention == "attention" == part_of("aten::mm", "cpu_op", attention)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="no operator"):
        shares({"traceEvents": []})


def test_the_cpu_time_of_a_process_grows_by_its_work_and_includes_its_children() -> None:
    before = tree_cpu_seconds()
    while tree_cpu_seconds() < before + 0.02:
        sum(range(10_000))
    assert tree_rss_mib() > 10
    assert tree_cpu_seconds(2**22 - 1) == 0.0  # a process that is not there


def test_outside_a_repository_the_commit_is_unknown(tmp_path: Path) -> None:
    assert commit(tmp_path) == "unknown"


def test_on_a_gpu_wall_time_is_what_counts(arena: FakeArena) -> None:
    by_wall = FakeArena(arena.checkpoint, arena.sids, arena.codes_NL, {}, by_wall=True)
    assert {row["contender"]: row["cost_ms"] for row in measure_cell(by_wall, CELL)}["ours"] == [2000.0] * 3


def test_a_checkpoint_is_made_once_and_again_when_its_making_was_interrupted(tmp_path: Path) -> None:
    bench, world = Bench(options(work=tmp_path)), World("tiny", 50, max_prompt=33)
    folder = bench._checkpoint(world).folder
    made = (folder / "manifest.json").stat().st_mtime_ns
    assert bench._checkpoint(world).folder == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == made
    (folder / "manifest.json").unlink()
    assert bench._checkpoint(world).manifest.data.num_items == 50


def test_another_recipe_of_the_same_world_is_another_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, world = Bench(options(work=tmp_path)), World("tiny", 50, max_prompt=33)
    before = bench._checkpoint(world).folder
    monkeypatch.setattr("loadtest.engine.grid.SID_ROW_STD", 0.2)
    assert bench._checkpoint(world).folder != before


def test_warming_starts_every_vllm_engine_once_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, str]] = []

    class Started:
        start = {"start_s": 1.0}

        def __enter__(self) -> "Started":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def start(kind: str, mode: str) -> Started:
        started.append((kind, mode))
        return Started()

    monkeypatch.setattr(Bench, "_checkpoint", lambda self, world: None)
    monkeypatch.setattr(Bench, "_starter", lambda self, checkpoint, world: start)
    summary = Bench(options(work=tmp_path, only=("warm",))).run()
    assert started == [("ours", "eager"), ("plain", "eager")]
    assert summary["rows"] == []
