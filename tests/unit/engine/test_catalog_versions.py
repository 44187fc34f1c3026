"""Engines keep the last few catalogue versions, each exactly what its deltas say."""

import numpy as np
import pytest

from service.engine.base import BeamRequest, CatalogDelta, LegalSlots
from service.engine.catalog_versions import CatalogVersions
from service.errors import UnknownVersionError

TRAINED = np.array([[0, 0], [0, 1], [2, 2]])


def leaves(versions: CatalogVersions, version: int) -> set[tuple[int, ...]]:
    trie = versions.get(version)
    assert trie is not None
    return {tuple(sid) for sid in trie.codes_of(trie.live_leaves()).tolist()}


def test_each_version_is_the_one_before_it_and_its_delta() -> None:
    versions = CatalogVersions(TRAINED, codes=4, keep=8)
    versions.apply(CatalogDelta(1, 0, added=[(3, 3)]))
    versions.apply(CatalogDelta(2, 1, removed=[(0, 0), (3, 3)]))
    versions.apply(CatalogDelta(3, 2, added=[(0, 0)]))
    assert leaves(versions, 0) == {(0, 0), (0, 1), (2, 2)}
    assert leaves(versions, 1) == {(0, 0), (0, 1), (2, 2), (3, 3)}
    assert leaves(versions, 2) == {(0, 1), (2, 2)}
    assert leaves(versions, 3) == {(0, 0), (0, 1), (2, 2)}


def test_old_versions_are_forgotten_and_said_to_be() -> None:
    versions = CatalogVersions(TRAINED, codes=4, keep=2)
    for version in (1, 2, 3):
        versions.apply(CatalogDelta(version, version - 1))
    assert [versions.get(version) is None for version in range(5)] == [True, True, False, False, True]


def test_a_delta_that_is_known_changes_nothing_and_a_gap_is_refused() -> None:
    versions = CatalogVersions(TRAINED, codes=4, keep=2)
    versions.apply(CatalogDelta(1, 0))
    versions.apply(CatalogDelta(1, 0, added=[(3, 3)]))
    assert (3, 3) not in leaves(versions, 1)
    with pytest.raises(ValueError, match="does not follow 1"):
        versions.apply(CatalogDelta(3, 2))


def test_an_item_added_to_a_trained_leaf_is_not_new() -> None:
    versions = CatalogVersions(TRAINED, codes=4, keep=2)
    versions.apply(CatalogDelta(1, 0, added=[(0, 1), (3, 0)]))
    trie = versions.get(1)
    assert trie is not None
    assert [trie.is_new(1, node) for node in range(trie.num_nodes(1))] == [False, False, True]


def grown(keep: int = 3, versions: int = 12) -> CatalogVersions:
    """Two SIDs more per version, folded again and again."""
    held = CatalogVersions(TRAINED, codes=64, keep=keep, compact_at=3)
    for version in range(1, versions + 1):
        held.apply(CatalogDelta(version, version - 1, added=[(3, version), (4, version)], removed=[(3, version - 1)]))
    held.wait_for_compaction()
    return held


def test_folding_changes_no_version_and_no_slot() -> None:
    held = grown()
    for version in (10, 11, 12):
        assert leaves(held, version) == {(0, 0), (0, 1), (2, 2), (3, version)} | {(4, n) for n in range(1, version + 1)}
    trie = held.get(12)
    assert trie is not None
    live = trie.live_leaves()
    slots = dict(zip(map(tuple, trie.codes_of(live).tolist()), trie.slots_of(live).tolist(), strict=True))
    assert slots == {(0, 0): 0, (0, 1): 1, (2, 2): 2, (3, 12): 25} | {(4, n): 2 * n + 2 for n in range(1, 13)}


def test_additions_are_folded_while_versions_keep_coming() -> None:
    held = grown(versions=40)
    trie = held.get(40)
    assert trie is not None
    assert trie.num_added <= 3
    assert trie.num_leaves == 3 + 1 + 40


@pytest.mark.parametrize("version", [10, 12])
def test_a_filter_names_slots_in_every_version_folded_or_not(version: int) -> None:
    held = grown()
    legal = LegalSlots.of("some", np.isin(np.arange(27), [0, 3, 4, 24, 26]))
    query = held.query(BeamRequest((), 9, version, (), legal))
    assert query.legal is not None
    # slot 3 is (3, 1), which is gone; 24 and 26 came with versions 11 and 12
    assert query.legal.counts[-1] == {10: 2, 12: 4}[version]
    assert held.query(BeamRequest((), 9, version, (), legal)).legal is query.legal


def test_filters_of_a_forgotten_version_are_forgotten_too() -> None:
    held = CatalogVersions(TRAINED, codes=4, keep=1)
    before = held.num_bytes
    held.query(BeamRequest((), 9, 0, (), LegalSlots.of("one", np.array([True, False, False]))))
    assert held.num_bytes > before
    held.apply(CatalogDelta(1, 0))
    assert held.num_bytes == before
    with pytest.raises(UnknownVersionError, match="version 0 is no longer held"):
        held.query(BeamRequest((), 9, 0))


def test_versions_may_be_far_apart_but_must_follow_the_latest() -> None:
    held = CatalogVersions(TRAINED, codes=4, keep=4)
    held.apply(CatalogDelta(7, 0, added=[(3, 3)]))
    with pytest.raises(ValueError, match="from catalogue version 6 to 8 does not follow 7"):
        held.apply(CatalogDelta(8, 6))
    held.apply(CatalogDelta(20, 7, removed=[(3, 3)]))
    assert leaves(held, 7) == leaves(held, 20) | {(3, 3)}


@pytest.mark.parametrize("sid", [(0, 4), (-1, 0), (0, 0, 0)])
def test_a_sid_of_another_shape_is_refused_and_leaves_the_version_as_it_was(sid: tuple[int, ...]) -> None:
    held = CatalogVersions(TRAINED, codes=4, keep=2)
    with pytest.raises(ValueError, match="not a SID of 2 codes below 4"):
        held.apply(CatalogDelta(1, 0, added=[(3, 3), sid]))
    assert held.latest == 0
    assert leaves(held, 0) == {(0, 0), (0, 1), (2, 2)}
