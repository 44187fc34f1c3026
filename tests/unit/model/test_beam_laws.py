"""The beam's laws, for any catalogue and any history of it, against an independent brute force over Python sets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.base import BeamRequest, CatalogDelta, LegalSlots
from service.engine.catalog_versions import CatalogVersions
from service.model.beam import Beams, beam_search
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix
from tests.unit.model.brute_beam import ToyModel, Truth

LOG_BOOST = math.log(2)
KEPT = 3


@dataclass
class World:
    """A catalogue with a past: what the engine holds, and the same as plain sets per version."""

    versions: CatalogVersions
    truths: dict[int, Truth]
    slots: dict[Sid, int]
    levels: int
    codes: int

    def search(self, model: ToyModel, requests: Sequence[BeamRequest]) -> list[Beams]:
        return beam_search(model, [self.versions.query(request) for request in requests], log_boost=LOG_BOOST)

    def legal(self, request: BeamRequest) -> frozenset[Sid]:
        live = self.truths[request.catalog_version].live - set(request.excluded)
        if request.legal is None:
            return live
        mask = request.legal.mask(len(self.slots))
        return frozenset(sid for sid in live if mask[self.slots[sid]])


@st.composite
def worlds(draw: st.DrawFn) -> World:
    levels = draw(st.integers(2, 8))
    codes = draw(st.integers(2, 6 if levels < 5 else 3))
    sid = st.tuples(*[st.integers(0, codes - 1)] * levels)
    trained = frozenset(draw(st.lists(sid, max_size=25)))
    array = np.array(sorted(trained), np.int64).reshape(-1, levels)
    versions = CatalogVersions(array, codes, keep=KEPT, compact_at=draw(st.sampled_from([1, 10**6])))
    truth = Truth(trained, trained, {}, LOG_BOOST)
    world = World(versions, {0: truth}, {sid: slot for slot, sid in enumerate(sorted(trained))}, levels, codes)
    version = 0
    for _ in range(draw(st.integers(0, 5))):
        known = sorted(world.slots)
        added = draw(st.lists(st.one_of(sid, *([st.sampled_from(known)] if known else [])), max_size=6, unique=True))
        removed = draw(st.lists(st.sampled_from(known), max_size=6, unique=True)) if known else []
        live = (truth.live - set(removed)) | set(added)
        for one in added:
            world.slots.setdefault(one, len(world.slots))
        smoothing = draw(mixes(added, trained))
        truth = Truth(live, trained, {**truth.mixes, **smoothing}, LOG_BOOST)
        previous, version = version, version + draw(st.integers(1, 3))
        versions.apply(CatalogDelta(version, previous, added, removed, smoothing))
        world.truths[version] = truth
        if draw(st.booleans()):
            versions.wait_for_compaction()
    return world


@st.composite
def mixes(draw: st.DrawFn, added: Sequence[Sid], trained: frozenset[Sid]) -> dict[Sid, SiblingMix]:
    """For some new nodes on the way to the added SIDs, mixtures of some trained siblings."""
    made: dict[Sid, SiblingMix] = {}
    for sid in added:
        for length in range(1, len(sid) + 1):
            prefix = sid[:length]
            siblings = sorted({other[length - 1] for other in trained if other[: length - 1] == prefix[:-1]})
            if siblings and prefix[-1] not in siblings and draw(st.booleans()):
                weights = np.random.default_rng(draw(st.integers(0, 99))).dirichlet(np.ones(len(siblings)))
                made[prefix] = SiblingMix(tuple(siblings), tuple(np.log(weights).tolist()))
    return made


@st.composite
def requests_of(draw: st.DrawFn, world: World) -> BeamRequest:
    version = draw(st.sampled_from(sorted(world.truths)[-KEPT:]))
    known = sorted(world.slots)
    excluded = draw(st.lists(st.sampled_from(known), max_size=8)) if known else []
    legal = None
    if draw(st.booleans()):
        chosen = set(draw(st.lists(st.sampled_from(known), max_size=15))) if known else set()
        mask = np.array([sid in chosen for sid in world.slots], bool)
        legal = LegalSlots.of(f"{version}:{sorted(chosen)}", mask)
    width, results = draw(st.integers(1, 12)), draw(st.sampled_from([None, 1, 5, 40]))
    return BeamRequest((), width, version, excluded, legal, results)


def as_pairs(beams: Beams) -> list[tuple[float, Sid]]:
    return [(score, tuple(sid)) for score, sid in zip(beams.score_n.tolist(), beams.codes_nL.tolist(), strict=True)]


@settings(max_examples=100, deadline=None)
@given(world=worlds(), data=st.data())
def test_every_answer_is_what_brute_force_finds(world: World, data: st.DataObject) -> None:
    """Users of different versions, widths, filters and exclusions in one batch; adds, removals, returns, folding."""
    requests = data.draw(st.lists(requests_of(world), min_size=1, max_size=4))
    model = ToyModel(list(range(len(requests))), world.codes)
    for user, (request, beams) in enumerate(zip(requests, world.search(model, requests), strict=True)):
        truth, legal = world.truths[request.catalog_version], world.legal(request)
        results = request.num_results or request.beam_width
        width = len(legal) if beams.exact else request.beam_width
        want = truth.beam(model, user, legal, width, results)
        found = as_pairs(beams)
        assert len({sid for _, sid in found}) == len(found)
        assert {sid for _, sid in found} <= legal
        assert [score for score, _ in found] == pytest.approx([score for score, _ in want], abs=1e-4)
        assert beams.level_score_nL.sum(1).tolist() == pytest.approx([score for score, _ in found], abs=1e-4)
        assert not torch.isnan(beams.score_n).any()


@settings(max_examples=40, deadline=None)
@given(world=worlds(), data=st.data())
def test_an_answer_is_the_same_bit_by_bit_whoever_shares_its_batch(world: World, data: st.DataObject) -> None:
    requests = data.draw(st.lists(requests_of(world), min_size=2, max_size=4))
    together = world.search(ToyModel(list(range(len(requests))), world.codes), requests)
    for user, (request, beams) in enumerate(zip(requests, together, strict=True)):
        alone = world.search(ToyModel([user], world.codes), [request])[0]
        assert as_pairs(beams) == as_pairs(alone)
        assert beams.exact == alone.exact


@settings(max_examples=40, deadline=None)
@given(world=worlds(), data=st.data())
def test_no_beam_is_wasted_and_the_answer_is_full_while_legal_sids_exist(world: World, data: st.DataObject) -> None:
    request = data.draw(requests_of(world))
    model, legal = ToyModel([0], world.codes), world.legal(request)
    beams = world.search(model, [request])[0]
    for _, prefix in model.asked:
        assert any(sid[: len(prefix)] == prefix for sid in legal)
    assert len(model.asked) <= (world.levels - 1) * request.beam_width
    if beams.exact or len(legal) <= request.beam_width:
        assert len(as_pairs(beams)) == min(request.num_results or request.beam_width, len(legal))
    assert bool(len(as_pairs(beams))) == bool(legal)


@settings(max_examples=40, deadline=None)
@given(world=worlds(), data=st.data())
def test_a_catalogue_that_costs_no_more_than_the_beam_is_scored_exactly(world: World, data: st.DataObject) -> None:
    request = data.draw(requests_of(world))
    legal = world.legal(BeamRequest((), 1, request.catalog_version, (), request.legal))
    inner = [len({sid[:length] for sid in legal}) for length in range(1, world.levels)]
    beams = world.search(ToyModel([0], world.codes), [request])[0]
    if sum(inner) <= len(inner) * request.beam_width or max(inner) <= request.beam_width:
        assert beams.exact
