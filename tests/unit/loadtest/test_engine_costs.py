"""What filters, a returning user and an insert cost is computed from turns that make it comparable, and checked."""

from typing import Any

import numpy as np
import pytest

from loadtest.engine import sections
from loadtest.engine.contender import Answer, Batch
from loadtest.engine.grid import Cell, World
from loadtest.engine.process import Run
from loadtest.engine.prompts import legal_mask
from loadtest.engine.sections import Arena, WrongAnswerError, measure_agreement, measure_costs, measure_served
from loadtest.engine.sorted_sids import SortedSids
from service.model.semantic_ids import SidSpace

SPACE = SidSpace(2, 16, 10)
CODES = np.array([[a, b] for a in range(16) for b in range(8)])
SIDS = SortedSids(CODES, SPACE)
CELL = Cell(World("tiny", 128), "eager", 2, 3, 9, ("ours", "line"), rounds=3)


class FakeChild:
    """Answers facts."""

    def fact(self, name: str, **arguments: Any) -> dict[str, Any]:
        if name == "insert":
            return {"visible_ms": [2.0, 3.0, 40.0]}
        if name == "bulk":
            return {"per_second": len(arguments["sids"]) / 0.5}
        return {"linear": 0.7, "prefix memory": 0.01, "rest": 0.29}

    def __enter__(self) -> "FakeChild":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeArena(Arena):
    """Costs: 3 s a request, 2.1 s with a warm cache, 3.3 s with a known filter, 4.5 s with a new one, prefill 1 s."""

    obeys = True
    asked: list[Batch] = []

    def run(self, contender: str, batch: Batch) -> Run:
        self.asked.append(batch)
        mask_N = legal_mask(batch.legal_share, batch.legal_key, len(SIDS))
        legal = np.flatnonzero(mask_N if self.obeys else ~mask_N)[: batch.beam] if batch.legal_share < 1 else range(3)
        sids = [tuple(CODES[slot].tolist()) for slot in legal]
        answer = Answer(tuple(sids), tuple(-float(rank) for rank in range(len(sids))))
        seconds = 1.0 if contender == "line" else 2.1 if batch.keep_cache else 3.0
        if batch.legal_share < 1:
            seconds = 3.3 if batch.legal_key == "rule" else 4.5
        return Run(seconds, 1.0, 1.0, () if contender == "line" else (answer,) * len(batch.prompts))

    def prompts(self, users: int, tokens: int, seed: int) -> list[list[int]]:
        return [[seed] * tokens for _ in range(users)]


class Checkpoint:
    """As much of one as costs need."""

    space = SPACE

    def catalog_tensors(self) -> Any:
        class Tensors:
            codes_NL = CODES

        return Tensors()


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> FakeArena:
    monkeypatch.setattr(FakeArena, "asked", [])
    checkpoint: Any = Checkpoint()
    children: Any = {"ours": FakeChild()}
    return FakeArena(checkpoint, SIDS, CODES, children)


def test_costs_are_ratios_inside_rounds_and_shares_of_the_profile(arena: FakeArena) -> None:
    figures = {row["figure"]: row["value"] for row in measure_costs(arena, CELL)}
    assert figures["filtered_ratio"] == pytest.approx(1.1)
    assert figures["fresh_filter_ratio"] == pytest.approx(1.5)
    assert figures["prefill_saved"] == pytest.approx(0.9)
    assert figures["returning_ratio"] == pytest.approx(0.7)
    assert figures["decode_ms_per_batch"] == pytest.approx(2000)
    assert figures["prefix_memory_share"] == 0.01
    assert figures["profile"]["linear"] == 0.7


def test_a_returning_user_comes_with_one_item_more_and_finds_the_cache_kept(arena: FakeArena) -> None:
    measure_costs(arena, CELL)
    kept = next(place for place, batch in enumerate(arena.asked) if batch.keep_cache)
    earlier, later = arena.asked[kept - 1], arena.asked[kept]
    assert not earlier.keep_cache
    assert [len(prompt) for prompt in later.prompts] == [len(prompt) + 2 for prompt in earlier.prompts]


def test_every_fresh_filter_is_another_one(arena: FakeArena) -> None:
    measure_costs(arena, CELL)
    keys = [batch.legal_key for batch in arena.asked if batch.legal_key.startswith("fresh")]
    assert len(set(keys)) == len(keys) == 3


def test_a_filter_that_is_not_obeyed_ends_the_run(arena: FakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeArena, "obeys", False)
    with pytest.raises(WrongAnswerError, match="forbids"):
        measure_costs(arena, CELL)


def test_rankings_that_differ_end_the_run(arena: FakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure_agreement(arena, CELL)[0]["same_ranking"] == 2

    def other(contender: str, batch: Batch) -> Run:
        scores = (0.0, -1.0 if contender == "ours" else -1.5, -2.0)
        return Run(1, 1, 1, (Answer(((0, 0), (0, 1), (0, 2)), scores),) * 2)

    monkeypatch.setattr(FakeArena, "run", staticmethod(other))
    with pytest.raises(WrongAnswerError, match=r"differ by 0\.5"):
        measure_agreement(arena, CELL)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_start_is_timed_from_the_childs_birth_and_inserts_are_asked_back(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "BULK", 50)
    clock = iter([10.0, 17.5])
    child: Any = FakeChild()
    checkpoint: Any = Checkpoint()
    rows = measure_served(lambda kind, mode: child, checkpoint, CELL.world, mode, lambda: next(clock))
    figures = {row["figure"]: row["value"] for row in rows}
    inserts = {"insert_ms": 3.0, "insert_ms_worst": 40.0, "inserts_per_second": 100.0}
    assert figures == {"start_s": 7.5} | (inserts if mode == "eager" else {})
