"""The soak finds what is wrong with an engine, and nothing when nothing is."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from loadtest.engine_soak import LiveSids, Soak, slope
from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta
from service.engine.catalog_versions import CatalogVersions
from service.model.checkpoint import Checkpoint
from service.model.semantic_ids import Sid
from tests.tiny_checkpoint import Shape, build

Fault = Callable[[BeamRequest, list[Sid]], list[Sid]]


class Exhaustive:
    """The right answer from the tries that engines hold, all scores equal; then a fault."""

    pid = "self"

    def __init__(self, checkpoint: Checkpoint, fault: Fault) -> None:
        codes_NL = checkpoint.catalog_tensors().codes_NL
        self.versions = CatalogVersions(codes_NL, checkpoint.space.codes, keep=64)
        self.sids = LiveSids.of(codes_NL)
        self._fault = fault

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        alive_S = self.sids.alive[request.catalog_version]
        legal_S = alive_S if request.legal is None else alive_S & request.legal.mask(len(alive_S))
        excluded = set(request.excluded)
        found = [self.sids.slots[slot] for slot in np.flatnonzero(legal_S)]
        found = [sid for sid in found if sid not in excluded][: request.beam_width]
        found = self._fault(request, found)
        return BeamAnswer(tuple(found), (-1.0,) * len(found), ((-1.0,),) * len(found))

    async def update_catalog(self, delta: CatalogDelta) -> None:
        self.versions.apply(delta)


async def soaked(folder: Path, fault: Fault, title_tokens: int = 0) -> Soak:
    checkpoint = build(folder / "tiny", Shape(codes=16, items=300, title_tokens=title_tokens))
    engine = Exhaustive(checkpoint, fault)
    soak = Soak(engine, checkpoint, engine.sids, seed=3)  # type: ignore[arg-type]
    memory = await soak.run(300, concurrency=4, change_every=10, samples=20)
    assert soak.findings.answers == 300 and len(memory) >= 15
    trie = engine.versions.get(engine.sids.latest)
    assert trie is not None and trie.num_leaves == int(engine.sids.alive[engine.sids.latest].sum())
    return soak


async def test_a_right_engine_is_found_right_through_all_changes(tmp_path: Path) -> None:
    findings = (await soaked(tmp_path, lambda request, sids: sids)).findings
    assert findings.wrong == 0 and findings.sids > 1000


async def test_a_model_that_reads_titles_is_given_some(tmp_path: Path) -> None:
    lengths: set[int] = set()

    def right(request: BeamRequest, sids: list[Sid]) -> list[Sid]:
        lengths.add(len(request.prompt_ids))
        return sids

    assert (await soaked(tmp_path, right, title_tokens=4)).findings.wrong == 0
    assert max(lengths) > 3 + 12 * 3, "longer than twelve SIDs and the prefix"


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("illegal", lambda request, sids: [*sids, (15, 15, 16)]),
        ("repeated", lambda request, sids: [*sids, *sids[:1]]),
        ("excluded", lambda request, sids: [*sids, *request.excluded[:1]]),
        ("short", lambda request, sids: sids[:-1]),
    ],
)
async def test_each_fault_is_counted_under_its_name(kind: str, fault: Fault, tmp_path: Path) -> None:
    findings = dataclasses.asdict((await soaked(tmp_path, fault)).findings)
    assert findings[kind] > 50


def test_the_slope_is_that_of_the_second_half() -> None:
    memory = [(n, 5000 + (900 * n if n < 50 else 45_000 + 2 * n), 100) for n in range(100)]
    assert slope(memory, 1) == pytest.approx(2000)
    assert slope(memory, 2) == pytest.approx(0)
