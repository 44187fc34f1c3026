"""What one rule leaves of one catalogue version: per level the prefixes that lead to a legal, live SID, as bits.

Made once from the bits over slots and kept while requests use it, so that a filtered beam only tests a bit where an
unfiltered one tests none, and never enters a prefix without a legal leaf.

Shapes: L levels, X bytes of a level's bits.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from service.model.legal_slots import LegalSlots
from service.model.live_trie import LiveTrie
from service.model.node_bits import Bits, has_bit, pack_bits, unpack_bits


@dataclass(frozen=True, slots=True)
class LegalNodes:
    """``bits`` per level 1..L, uint8 [X] or None for all nodes, and how many nodes of the level they name."""

    bits: tuple[Bits, ...]
    counts: tuple[int, ...]

    @classmethod
    def live(cls, trie: LiveTrie) -> "LegalNodes":
        """Without a rule: every live SID."""
        return cls(tuple(level.bits for level in trie.levels), tuple(level.live for level in trie.levels))

    @classmethod
    def of(cls, trie: LiveTrie, slots: LegalSlots) -> "LegalNodes":
        """The live SIDs whose slots are among the given."""
        given = torch.from_numpy(np.frombuffer(slots.bits, np.uint8).copy()).to(trie.device)
        mask = _leaves(trie, given)
        live = trie.levels[-1].bits
        if live is not None:
            mask &= unpack_bits(live, mask.numel())
        masks = [mask]
        for level in range(trie.depth - 1, 0, -1):
            masks.insert(0, _parents(trie, level, masks[0]))
        return cls(tuple(pack_bits(mask) for mask in masks), tuple(int(mask.sum()) for mask in masks))

    @property
    def num_bytes(self) -> int:
        """Memory of the bits, in bytes."""
        return sum(bits.nbytes for bits in self.bits if bits is not None)


def _leaves(trie: LiveTrie, given_X: Tensor) -> Tensor:
    """The bits over slots as a mask over leaves."""
    base = trie.base.num_leaves
    mask = unpack_bits(given_X, base) if trie.slot_N is None else _named(given_X, trie.slot_N)
    return torch.cat([mask, _named(given_X, trie.added_slot_M)]) if trie.added_slot_M.numel() else mask


def _named(given_X: Tensor, slot_N: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(given_X, (0, max(0, int(slot_N.max()) // 8 + 1 - given_X.numel())))
    return has_bit(padded, slot_N.long())


def _parents(trie: LiveTrie, level: int, child_mask: Tensor) -> Tensor:
    """The level-``level`` nodes with a child in the mask."""
    start, base = trie.base.levels[level].start.long(), trie.base.num_nodes(level + 1)
    before = torch.nn.functional.pad(torch.cumsum(child_mask[:base], 0, dtype=torch.int32), (1, 0))
    mask = before[start[1:]] > before[start[:-1]]
    mask = torch.nn.functional.pad(mask, (0, trie.num_nodes(level) - mask.numel()))
    added_key = trie.levels[level].added_key[child_mask[base:]]
    mask[torch.div(added_key, trie.codes, rounding_mode="floor")] = True
    return mask
