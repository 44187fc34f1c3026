"""The trie holds exactly the SIDs it was built from, in few bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.model.semantic_ids import Sid
from service.model.trie import Children, SidTrie

CODES = 6
sid_lists = st.lists(st.tuples(*[st.integers(0, CODES - 1)] * 3), min_size=1, max_size=60)


def array(sids: list[Sid]) -> NDArray[np.int64]:
    return np.array(sids, np.int64)


def as_edges(found: Children) -> list[tuple[int, int, int]]:
    """Row, code and child of every edge."""
    edges = torch.nonzero(found.node_E >= 0)[:, 0]
    pairs = zip(found.cells(edges).tolist(), found.node_E[edges].tolist(), strict=True)
    return [(cell // CODES, cell % CODES, child) for cell, child in pairs]


@settings(deadline=None)
@given(sids=sid_lists, others=sid_lists)
def test_it_finds_its_own_sids_and_no_others(sids: list[Sid], others: list[Sid]) -> None:
    trie = SidTrie.build(array(sids), CODES)
    assert [tuple(sid) for sid in trie.leaf_codes().tolist()] == sorted(set(sids))
    assert trie.num_leaves == len(set(sids))
    found = trie.find(torch.from_numpy(array(others))) >= 0
    assert found.tolist() == [sid in set(sids) for sid in others]


@settings(deadline=None)
@given(sids=sid_lists)
def test_expanding_level_by_level_walks_every_sid_once_in_order(sids: list[Sid]) -> None:
    trie = SidTrie.build(array(sids), CODES)
    paths: dict[int, Sid] = {0: ()}
    for level in range(3):
        nodes = list(paths)
        paths = {
            child: (*paths[nodes[row]], code) for row, code, child in as_edges(trie.expand(level, torch.tensor(nodes)))
        }
    assert list(paths.values()) == sorted(set(sids))


@settings(deadline=None)
@given(sids=sid_lists)
def test_children_leaf_ranges_and_parents_agree_with_the_sids(sids: list[Sid]) -> None:
    trie = SidTrie.build(array(sids), CODES)
    ordered = sorted(set(sids))
    for length in range(3):
        for node, prefix in enumerate(sorted({sid[:length] for sid in sids})):
            below = [sid for sid in ordered if sid[:length] == prefix]
            first, last = trie.leaf_range(length, node)
            assert ordered[first:last] == below
            assert trie.children(length, node).tolist() == sorted({sid[length] for sid in below})
    parents = trie.parents(3, torch.arange(trie.num_leaves)).tolist()
    inner = sorted({sid[:2] for sid in sids})
    assert [inner[parent] for parent in parents] == [sid[:2] for sid in ordered]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.integers(2, 8), codes=st.sampled_from([2, 300, 8192]))
def test_any_number_of_levels_and_codes_is_sorted_like_tuples(seed: int, levels: int, codes: int) -> None:
    sids = np.random.default_rng(seed).integers(0, codes, (40, levels))
    trie = SidTrie.build(sids, codes)
    assert [tuple(sid) for sid in trie.leaf_codes().tolist()] == sorted({tuple(sid) for sid in sids.tolist()})


def test_dense_and_sparse_levels_expand_alike() -> None:
    full = np.array([(a, b, c) for a in range(CODES) for b in range(CODES) for c in range(2)])
    trie = SidTrie.build(full, CODES)
    assert [level.table is not None for level in trie.levels] == [True, True, True]
    sparse = SidTrie.build(full[full[:, 0] + full[:, 1] < 2], 64)
    assert sparse.levels[1].table is None
    assert sparse.find(torch.tensor([[0, 1, 1], [1, 1, 0], [1, 0, 1]])).tolist() == [3, -1, 5]


def test_an_empty_trie_has_no_children_and_finds_nothing() -> None:
    trie = SidTrie.build(np.zeros((0, 3), np.int64), CODES)
    assert trie.num_leaves == 0
    assert as_edges(trie.expand(0, torch.tensor([0]))) == []
    assert trie.find(torch.tensor([[0, 0, 0]])).tolist() == [-1]


def test_a_million_items_take_less_than_30_bytes_each() -> None:
    for levels, codes in ((3, 256), (4, 256), (3, 8192)):
        sids = np.random.default_rng(0).integers(0, codes, (10**6, levels), dtype=np.int16)
        assert SidTrie.build(sids, codes).num_bytes <= 30 * 10**6


@pytest.mark.parametrize("code", [-1, 6])
def test_codes_outside_the_codebook_are_refused(code: int) -> None:
    with pytest.raises(ValueError, match="codes below 6"):
        SidTrie.build(array([(0, 0, code)]), CODES)
