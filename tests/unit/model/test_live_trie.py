"""A changing catalogue holds exactly what was added and not removed, under lasting numbers, and lends what it says."""

import math

import numpy as np
import pytest
import torch

from service.model.live_trie import LiveTrie
from service.model.node_bits import has_bit, pack_bits, unpack_bits, with_bits
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix
from service.model.trie_compaction import compacted

CODES = 6
Mixes = dict[Sid, SiblingMix]


def trained(*sids: Sid) -> LiveTrie:
    return LiveTrie.build(np.array(sids, np.int64).reshape(-1, 3), CODES)


def sids_of(trie: LiveTrie) -> list[Sid]:
    return [tuple(sid) for sid in trie.codes_of(trie.live_leaves()).tolist()]


def slot_of(trie: LiveTrie, sid: Sid) -> int:
    return int(trie.slots_of(trie.find(torch.tensor([sid])))[0])


def test_a_removed_sid_keeps_its_slot_and_gets_it_back() -> None:
    first = trained((1, 0, 0), (0, 0, 0))
    second = first.advance([(5, 5, 5), (2, 2, 2)], [], {})
    gone = second.advance([], [(5, 5, 5), (0, 0, 0)], {})
    back = gone.advance([(3, 3, 3), (5, 5, 5), (0, 0, 0)], [], {})
    assert sorted(sids_of(gone)) == [(1, 0, 0), (2, 2, 2)]
    for trie in (back, compacted(back), compacted(gone).advance([(3, 3, 3), (5, 5, 5), (0, 0, 0)], [], {})):
        slots = {sid: slot_of(trie, sid) for sid in sids_of(trie)}
        assert slots == {(0, 0, 0): 0, (1, 0, 0): 1, (5, 5, 5): 2, (2, 2, 2): 3, (3, 3, 3): 4}


def test_a_prefix_without_live_leaves_is_not_live_and_a_version_stays_what_it_was() -> None:
    before = trained((0, 0, 0), (0, 1, 0), (1, 0, 0))
    after = before.advance([], [(0, 0, 0), (0, 1, 0)], {})
    assert [after.num_live(level) for level in range(4)] == [1, 1, 1, 1]
    assert [before.num_live(level) for level in range(4)] == [1, 2, 3, 3]
    assert sids_of(before) == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]


def test_what_is_there_already_or_not_there_changes_nothing() -> None:
    trie = trained((0, 0, 0), (1, 0, 0)).advance([(1, 0, 0), (2, 0, 0), (2, 0, 0)], [(4, 4, 4)], {})
    assert sids_of(trie) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert trie.num_leaves == 3


def test_adding_and_removing_the_same_for_ever_takes_no_more_memory() -> None:
    trie = trained((0, 0, 0), (1, 0, 0))
    sizes = []
    for _ in range(20):
        trie = trie.advance([(2, 3, 4), (0, 0, 1)], [], {}).advance([], [(2, 3, 4), (0, 0, 1), (1, 0, 0)], {})
        trie = compacted(trie)
        sizes.append(trie.num_bytes)
    assert len(set(sizes)) == 1


def smoothed(trie: LiveTrie, level: int, prefix: Sid, logp: torch.Tensor, boost: float = 0.0) -> dict[int, float]:
    """The log-probabilities of all codes after ``prefix`` that new nodes changed."""
    node = trie.find(torch.tensor([prefix], dtype=torch.int64).reshape(1, level))
    after = trie.smooth(level, node, logp[None], boost)[0]
    return {code: float(after[code]) for code in torch.nonzero(after != logp)[:, 0].tolist()}


@pytest.fixture
def logp() -> torch.Tensor:
    return torch.log_softmax(torch.randn(CODES, generator=torch.Generator().manual_seed(0)), 0)


@pytest.mark.parametrize("fold", [False, True])
def test_a_new_leaf_takes_the_weighted_mean_of_its_siblings_probabilities_times_the_boost(
    logp: torch.Tensor, fold: bool
) -> None:
    mixes: Mixes = {(0, 0, 5): SiblingMix((1, 4), (math.log(0.75), math.log(0.25)))}
    trie = trained((0, 0, 1), (0, 0, 4)).advance([(0, 0, 5)], [], mixes)
    want = math.log(2 * (0.75 * math.exp(logp[1]) + 0.25 * math.exp(logp[4])))
    assert smoothed(compacted(trie) if fold else trie, 2, (0, 0), logp, math.log(2)) == pytest.approx(
        {5: want}, abs=1e-6
    )


@pytest.mark.parametrize("fold", [False, True])
def test_below_a_new_prefix_the_live_leaves_share_uniformly_and_unboosted(logp: torch.Tensor, fold: bool) -> None:
    mixes: Mixes = {(0, 3): SiblingMix((0,), (0.0,))}
    trie = trained((0, 0, 1)).advance([(0, 3, 2), (0, 3, 4), (0, 3, 5)], [], mixes).advance([], [(0, 3, 4)], {})
    trie = compacted(trie) if fold else trie
    assert smoothed(trie, 1, (0,), logp, 0.5) == pytest.approx({3: float(logp[0]) + 0.5})
    shares = smoothed(trie, 2, (0, 3), logp, 0.5)
    assert {code: shares[code] for code in (2, 5)} == pytest.approx({2: -math.log(2), 5: -math.log(2)})


def test_a_newer_mixture_replaces_the_older_in_later_versions_only(logp: torch.Tensor) -> None:
    first = trained((0, 0, 1), (0, 0, 4)).advance([(0, 0, 5)], [], {(0, 0, 5): SiblingMix((1,), (0.0,))})
    second = first.advance([], [], {(0, 0, 5): SiblingMix((4,), (0.0,)), (0, 0, 1): SiblingMix((4,), (0.0,))})
    for trie, lender in ((first, 1), (second, 4), (compacted(second), 4)):
        assert smoothed(trie, 2, (0, 0), logp) == pytest.approx({5: float(logp[lender])})


def test_siblings_of_probability_zero_lend_nothing_and_break_nothing() -> None:
    trie = trained((0, 0, 1)).advance([(0, 0, 5)], [], {(0, 0, 5): SiblingMix((1,), (0.0,))})
    nothing = torch.full((CODES,), float("-inf"))
    assert smoothed(trie, 2, (0, 0), nothing) == {}


def test_a_trained_sid_that_comes_back_keeps_the_models_own_probability(logp: torch.Tensor) -> None:
    trie = trained((0, 0, 1), (0, 0, 4)).advance([], [(0, 0, 4)], {}).advance([(0, 0, 4)], [], {})
    assert smoothed(trie, 2, (0, 0), logp) == {}
    assert not trie.is_new(3, int(trie.find(torch.tensor([[0, 0, 4]]))[0]))


def test_bits_are_set_cleared_and_lengthened_without_touching_the_original() -> None:
    mask = torch.tensor([True, False, True, True, False, False, True, False, True])
    bits = pack_bits(mask)
    assert unpack_bits(bits, 12).tolist() == [*mask.tolist(), False, False, False]
    changed = with_bits(with_bits(bits, torch.tensor([1, 4, 20]), True, 21), torch.tensor([0, 8]), False, 21)
    assert torch.nonzero(unpack_bits(changed, 21))[:, 0].tolist() == [1, 2, 3, 4, 6, 20]
    assert has_bit(changed, torch.tensor([1, 0, 20])).tolist() == [True, False, True]
    assert unpack_bits(bits, 9).tolist() == mask.tolist()
