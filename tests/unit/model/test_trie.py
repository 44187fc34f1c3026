"""The trie holds exactly the SIDs it was built from, and lends new nodes exactly what it says."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix, SidTrie

CODES = 6
sid_lists = st.lists(st.tuples(*[st.integers(0, CODES - 1)] * 3), min_size=1, max_size=60)


def array(sids: list[Sid]) -> NDArray[np.int64]:
    return np.array(sids, np.int64)


@settings(deadline=None)
@given(sids=sid_lists, others=sid_lists)
def test_it_finds_its_own_sids_and_no_others(sids: list[Sid], others: list[Sid]) -> None:
    trie = SidTrie.build(array(sids), CODES)
    assert {tuple(sid) for sid in trie.leaf_codes().tolist()} == set(sids)
    assert trie.num_leaves == len(set(sids))
    found = trie.find(torch.from_numpy(array(others))) >= 0
    assert found.tolist() == [sid in set(sids) for sid in others]


@settings(deadline=None)
@given(sids=sid_lists)
def test_expanding_level_by_level_walks_every_sid_once(sids: list[Sid]) -> None:
    trie = SidTrie.build(array(sids), CODES)
    paths: dict[int, Sid] = {0: ()}
    for level in range(3):
        nodes = list(paths)
        edges = trie.expand(level, torch.tensor(nodes))
        triples = zip(edges.row_E.tolist(), edges.code_E.tolist(), edges.child_E.tolist(), strict=True)
        paths = {child: (*paths[nodes[row]], code) for row, code, child in triples}
    assert sorted(paths.values()) == sorted(set(sids))


@settings(deadline=None)
@given(sids=sid_lists, data=st.data())
def test_a_node_is_dead_exactly_when_all_its_leaves_are(sids: list[Sid], data: st.DataObject) -> None:
    trie = SidTrie.build(array(sids), CODES)
    gone = set(data.draw(st.lists(st.sampled_from(sids))))
    leaves = trie.find(torch.from_numpy(array(sorted(gone)).reshape(-1, 3)))
    dead = trie.dead_nodes(leaves)
    for length in range(1, 4):
        prefixes = {sid[:length] for sid in sids}
        want = {prefix for prefix in prefixes if all(sid in gone for sid in sids if sid[:length] == prefix)}
        nodes = {int(trie.find(torch.tensor([prefix]))[0]) for prefix in want}
        assert set(dead[length - 1].tolist()) == nodes


def test_rows_that_are_dead_have_no_children() -> None:
    trie = SidTrie.build(array([(0, 0, 0), (1, 0, 0)]), CODES)
    edges = trie.expand(1, torch.tensor([0, 1]), torch.tensor([False, True]))
    assert edges.row_E.tolist() == [1]


def test_codes_outside_the_codebook_are_refused() -> None:
    with pytest.raises(ValueError, match="codes below 6"):
        SidTrie.build(array([(0, 0, 6)]), CODES)


def smoothed(trie: SidTrie, level: int, node: int, logp: torch.Tensor, boost: float = 0.0) -> dict[int, float]:
    edges = trie.expand(level, torch.tensor([node]))
    scores = trie.smooth(level, logp[None], edges, boost)
    return dict(zip(edges.code_E.tolist(), scores.tolist(), strict=True))


def test_a_new_leaf_takes_the_weighted_mean_of_its_siblings_probabilities_times_the_boost() -> None:
    mix = SiblingMix((1, 4), (math.log(0.75), math.log(0.25)))
    sids = array([(0, 0, 1), (0, 0, 4), (0, 0, 5)])
    trie = SidTrie.build(sids, CODES, trained_N=np.array([True, True, False]), smoothing={(0, 0, 5): mix})
    logp = torch.log_softmax(torch.randn(CODES, generator=torch.Generator().manual_seed(0)), 0)
    scores = smoothed(trie, 2, 0, logp, math.log(2))
    assert scores[1] == pytest.approx(float(logp[1]))
    assert scores[5] == pytest.approx(math.log(2 * (0.75 * math.exp(logp[1]) + 0.25 * math.exp(logp[4]))), abs=1e-6)


def test_below_a_new_prefix_the_leaves_share_uniformly() -> None:
    sids = array([(0, 0, 1), (0, 3, 2), (0, 3, 5)])
    mix = SiblingMix((0,), (0.0,))
    trie = SidTrie.build(sids, CODES, trained_N=np.array([True, False, False]), smoothing={(0, 3): mix})
    logp = torch.log_softmax(torch.randn(CODES), 0)
    assert smoothed(trie, 1, 0, logp)[3] == pytest.approx(float(logp[0]))
    node = int(trie.find(torch.tensor([[0, 3]]))[0])
    assert smoothed(trie, 2, node, logp) == pytest.approx({2: -math.log(2), 5: -math.log(2)})


def test_siblings_of_probability_zero_lend_nothing_and_break_nothing() -> None:
    mix = SiblingMix((1,), (0.0,))
    sids = array([(0, 0, 1), (0, 0, 5)])
    trie = SidTrie.build(sids, CODES, trained_N=np.array([True, False]), smoothing={(0, 0, 5): mix})
    logp = torch.full((CODES,), float("-inf"))
    assert smoothed(trie, 2, 0, logp)[5] == float("-inf")
