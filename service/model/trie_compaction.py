"""Folds a catalogue version's additions into a new base: the same SIDs, slots and scores, faster to walk and smaller.

Level by level the sorted base and its sorted additions are merged; nodes get new numbers, so whatever is derived from
numbers (filters, excluded leaves) belongs to one version and one base. SIDs that were removed stay as dead leaves,
because they keep their slots: memory grows with distinct SIDs ever seen (about 15 bytes each), not with changes.

Shapes: N base nodes of a level, M added nodes, n = N + M nodes in their new order.
"""

import torch
from torch import Tensor

from service.model.live_trie import LiveLevel, LiveTrie
from service.model.new_nodes import NewNodes, merge_places
from service.model.node_bits import Bits, pack_bits, unpack_bits
from service.model.trie import SidTrie, trie_level


def compacted(trie: LiveTrie) -> LiveTrie:
    """An equal version without additions; the given one stays as it is."""
    base_levels, new_per_level, bits, number = [], [], [], torch.zeros(1, dtype=torch.int64, device=trie.device)
    for level in range(trie.depth):
        parents = number.numel()
        key_n, number = _merged(trie, level, number)
        start = torch.searchsorted(key_n, torch.arange(parents + 1, device=trie.device) * trie.codes)
        base_levels.append(trie_level(start.cpu().numpy(), (key_n % trie.codes).cpu().numpy(), trie.codes, trie.device))
        new_per_level.append(_new_nodes(trie.levels[level], key_n, number))
        bits.append(_renumbered(trie.levels[level].bits, number))
    mixes = [new.mix_M[new.mix_M >= 0] for new in new_per_level]
    pool = trie.pool.take(torch.cat(mixes))
    first, levels = 0, []
    none = NewNodes.none(trie.device)
    for level, (new, mix) in enumerate(zip(new_per_level, mixes, strict=True)):
        mix_M = new.mix_M.clone()
        mix_M[mix_M >= 0] = torch.arange(first, first + mix.numel(), device=trie.device)
        first += mix.numel()
        folded = NewNodes(new.key_M, new.node_M, mix_M)
        levels.append(LiveLevel(folded, none, none.key_M, bits[level], trie.levels[level].live))
    slot_n = torch.empty_like(number)
    slot_n[number] = trie.slots_of(torch.arange(number.numel(), device=trie.device))
    return LiveTrie(SidTrie(base_levels, trie.codes), tuple(levels), pool, slot_n.int(), none.key_M)


def _merged(trie: LiveTrie, level: int, parent_number: Tensor) -> tuple[Tensor, Tensor]:
    """All nodes of level l+1: keys under renumbered parents, ascending int64 [n], and new numbers by old ones."""
    base, old = trie.base.levels[level], trie.levels[level]
    parent_N = torch.repeat_interleave(torch.arange(base.start.numel() - 1, device=trie.device), base.start.diff())
    key_N = parent_number[parent_N] * trie.codes + base.code
    added_parent = torch.div(old.added_key, trie.codes, rounding_mode="floor")
    added_key, order = torch.sort(parent_number[added_parent] * trie.codes + old.added_key % trie.codes)
    base_place, added_place = merge_places(key_N, added_key)
    number = key_N.new_empty(key_N.numel() + added_key.numel())
    number[: key_N.numel()] = base_place
    number[key_N.numel() + order] = added_place
    key_n = torch.empty_like(number)
    key_n[base_place], key_n[added_place] = key_N, added_key
    return key_n, number


def _new_nodes(level: LiveLevel, key_n: Tensor, number: Tensor) -> NewNodes:
    node = torch.cat([level.folded.node_M, level.added.node_M])
    node_M, order = torch.sort(number[node])
    return NewNodes(key_n[node_M], node_M, torch.cat([level.folded.mix_M, level.added.mix_M])[order])


def _renumbered(bits: Bits, number: Tensor) -> Bits:
    if bits is None:
        return None
    mask = torch.empty(number.numel(), dtype=torch.bool, device=number.device)
    mask[number] = unpack_bits(bits, number.numel())
    return pack_bits(mask)
