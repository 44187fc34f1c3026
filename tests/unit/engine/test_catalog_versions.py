"""Engines keep the last few catalogue versions, each exactly what its deltas say."""

import numpy as np
import pytest

from service.engine.base import CatalogDelta
from service.engine.catalog_versions import CatalogVersions

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
