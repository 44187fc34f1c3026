"""One version of a changing catalogue: an immutable `SidTrie` and beside it what came and went since it was built.

Nodes keep their numbers: those of the base first, then each level's additions in the order they came, so one bitmap per
level covers both. A removed SID keeps its leaf and its slot with its bit cleared; a prefix whose leaves are all gone is
cleared, too, and never entered. A change gives a new version that shares every untouched array, so a version costs its
overlay and the bitmaps it changed. Nodes without a *trained* leaf are new: a model never generates them by itself, so
they borrow probability (`smoothing`). Folding the overlay into a new base is `trie_compaction`'s business.

Shapes: N leaves or queries, L levels, K codes, R rows, P pairs of a row and a new child, E edges, M added nodes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.new_nodes import MixPool, NewNodes, merge_places
from service.model.node_bits import Bits, has_bit, pack_bits, unpack_bits, with_bits
from service.model.semantic_ids import Sid
from service.model.trie import Children, SiblingMix, SidTrie


@dataclass(frozen=True, slots=True)
class LiveLevel:
    """What changes between level l and l+1.

    Attributes:
        folded: new nodes that are part of the base.
        added: new nodes that are not.
        added_key: ``parent * K + code`` of the added nodes by number, int64 [M].
        bits: the live nodes of level l+1, None for all.
        live: how many nodes of level l+1 are live.
    """

    folded: NewNodes
    added: NewNodes
    added_key: Tensor
    bits: Bits
    live: int


@dataclass(frozen=True, slots=True, eq=False)
class LiveTrie:
    """Made by `build`, changed by `advance`.

    ``slot_N`` int32 names the slots of the base's leaves, None where leaf and slot are equal; ``added_slot_M`` those of
    the added leaves.
    """

    base: SidTrie
    levels: tuple[LiveLevel, ...]
    pool: MixPool
    slot_N: Tensor | None
    added_slot_M: Tensor

    @classmethod
    def build(cls, trained_NL: NDArray[np.integer], codes: int, device: str | torch.device = "cpu") -> "LiveTrie":
        """The trained SIDs, all live; their slots are their places in ascending order.

        Raises:
            ValueError: the array is not two-dimensional or a code is outside 0..codes-1.
        """
        base = SidTrie.build(trained_NL, codes, device)
        none = NewNodes.none(base.device)
        levels = tuple(
            LiveLevel(none, none, none.key_M, None, base.num_nodes(level + 1)) for level in range(base.depth)
        )
        return cls(base, levels, MixPool(base.device), None, none.key_M)

    @property
    def depth(self) -> int:
        """L."""
        return self.base.depth

    @property
    def codes(self) -> int:
        """K."""
        return self.base.codes

    @property
    def device(self) -> torch.device:
        """Where the arrays lie."""
        return self.base.device

    @property
    def num_leaves(self) -> int:
        """How many SIDs are live."""
        return self.num_live(self.depth)

    @property
    def num_added(self) -> int:
        """How many nodes lie beside the base, over all levels."""
        return sum(level.added_key.numel() for level in self.levels)

    @property
    def num_slots(self) -> int:
        """How many SIDs ever were."""
        return self.num_nodes(self.depth)

    @property
    def num_bytes(self) -> int:
        """Memory of everything this version refers to, in bytes."""
        own = sum(
            level.folded.num_bytes + level.added.num_bytes + level.added_key.nbytes + _nbytes(level.bits)
            for level in self.levels
        )
        return self.base.num_bytes + own + self.pool.num_bytes + _nbytes(self.slot_N) + self.added_slot_M.nbytes

    def num_nodes(self, level: int) -> int:
        """How many prefixes of length ``level`` have a number, live or not."""
        return self.base.num_nodes(level) + (self.levels[level - 1].added_key.numel() if level else 0)

    def num_live(self, level: int) -> int:
        """How many prefixes of length ``level`` lead to a live SID."""
        return self.levels[level - 1].live if level else 1

    def expand(self, level: int, node_R: Tensor) -> Children:
        """All children of level-``level`` nodes, those that are not live among them."""
        found = self.base.expand(level, node_R)
        added = self.levels[level].added
        if not added.key_M.numel():
            return found
        row_P, place_P = added.below(node_R, self.codes)
        if not row_P.numel():
            return found
        cell_P = row_P * self.codes + added.key_M[place_P] % self.codes
        child_P = added.node_M[place_P]
        if found.cell_E is None:
            return Children(None, found.node_E.index_put((cell_P,), child_P.to(found.node_E.dtype)))
        base_place, added_place = merge_places(found.cell_E, cell_P)
        cell_E, node_E = (found.cell_E.new_empty(base_place.numel() + added_place.numel()) for _ in range(2))
        cell_E[base_place], cell_E[added_place] = found.cell_E, cell_P
        node_E[base_place], node_E[added_place] = found.node_E, child_P
        return Children(cell_E, node_E)

    def count_children(self, level: int, node_N: Tensor, bits: Bits) -> Tensor:
        """How many children of each level-``level`` node have their bit in ``bits`` (None: all), int64 [N]."""
        found = self.expand(level, node_N)
        counted = found.node_E >= 0
        if bits is not None:
            counted &= has_bit(bits, found.node_E)
        row = torch.div(found.cells(torch.nonzero(counted)[:, 0]), self.codes, rounding_mode="floor")
        return torch.bincount(row, minlength=node_N.numel())

    def find(self, codes_NL: Tensor) -> Tensor:
        """Level-l nodes of the prefixes int [N, l], live or not, int64 [N]; -1 where a prefix has no number."""
        node_N = torch.zeros(codes_NL.shape[0], dtype=torch.int64, device=self.device)
        for level, code_N in enumerate(codes_NL.to(self.device).long().unbind(1)):
            node_N = self._child(level, node_N, code_N)
        return node_N

    def parent_and_code(self, level: int, node_N: Tensor) -> tuple[Tensor, Tensor]:
        """The parents of level-``level`` nodes (level >= 1) and their own codes, both int64 [N]."""
        base, added_key = self.base.num_nodes(level), self.levels[level - 1].added_key
        if not added_key.numel():
            return self.base.parents(level, node_N), self.base.levels[level - 1].code[node_N].long()
        key_N = added_key[(node_N - base).clamp(min=0)]
        parent_N, code_N = torch.div(key_N, self.codes, rounding_mode="floor"), key_N % self.codes
        if base:
            is_base, inside_N = node_N < base, node_N.clamp(max=base - 1)
            parent_N = torch.where(is_base, self.base.parents(level, inside_N), parent_N)
            code_N = torch.where(is_base, self.base.levels[level - 1].code[inside_N].long(), code_N)
        return parent_N, code_N

    def codes_of(self, leaf_N: Tensor) -> Tensor:
        """The SIDs of leaves, int64 [N, L]."""
        columns = []
        for level in range(self.depth, 0, -1):
            leaf_N, code_N = self.parent_and_code(level, leaf_N)
            columns.append(code_N)
        return torch.stack(columns[::-1], 1)

    def live_leaves(self) -> Tensor:
        """The numbers of the live leaves, ascending int64 [n]."""
        bits = self.levels[-1].bits
        if bits is None:
            return torch.arange(self.num_slots, device=self.device)
        return torch.nonzero(unpack_bits(bits, self.num_slots))[:, 0]

    def slots_of(self, leaf_N: Tensor) -> Tensor:
        """The slots of leaves, int64 [N]."""
        slot = torch.arange(self.base.num_leaves, device=self.device) if self.slot_N is None else self.slot_N.long()
        return torch.cat([slot, self.added_slot_M.long()])[leaf_N]

    def has_new(self, level: int) -> bool:
        """Whether some node of level ``level + 1`` is new."""
        return bool(self.levels[level].folded.key_M.numel() or self.levels[level].added.key_M.numel())

    def is_new(self, level: int, node: int) -> bool:
        """Whether a level-``level`` node (level >= 1) has no trained leaf below it."""
        folded = self.levels[level - 1].folded.node_M
        return node >= self.base.num_nodes(level) or bool((folded == node).any())

    def smooth(self, level: int, node_R: Tensor, logp_RK: Tensor, log_boost: float) -> Tensor:
        """Log-probabilities [R, K] with those of new children replaced: the boosted mixture of their trained siblings.

        A new child without a mixture (all that lies below a new node) gets the uniform 1 / (number of live children of
        its parent), unboosted.
        """
        given = logp_RK
        for new in (self.levels[level].folded, self.levels[level].added):
            if not new.key_M.numel():
                continue
            row_P, place_P = new.below(node_R, self.codes)
            if row_P.numel():
                code_P, mix_P = new.key_M[place_P] % self.codes, new.mix_M[place_P]
                lent_P = self._lent(level, node_R, row_P, mix_P, given, log_boost)
                logp_RK = logp_RK.index_put((row_P, code_P), lent_P)
        return logp_RK

    def advance(self, added: Sequence[Sid], removed: Sequence[Sid], smoothing: Mapping[Sid, SiblingMix]) -> "LiveTrie":
        """The next version; SIDs there already, or not there, and mixtures of nodes that are not new are ignored.

        Raises:
            ValueError: a SID has not L codes below K.
        """
        for sid in chain(added, removed):
            if len(sid) != self.depth or not all(0 <= code < self.codes for code in sid):
                raise ValueError(f"not a SID of {self.depth} codes below {self.codes}: {sid}")
        following = self
        if removed:
            following = following._without(following.find(_sids(removed, self.depth)))
        if added:
            following = following._with(_sids(added, self.depth))
        return following._with_mixes(smoothing) if smoothing else following

    def _child(self, level: int, node_N: Tensor, code_N: Tensor) -> Tensor:
        base_N = self.base.child(level, node_N, code_N)
        added = self.levels[level].added
        return (
            torch.where(base_N >= 0, base_N, added.child(node_N, code_N, self.codes)) if added.key_M.numel() else base_N
        )

    def _lent(
        self, level: int, node_R: Tensor, row_P: Tensor, mix_P: Tensor, logp_RK: Tensor, log_boost: float
    ) -> Tensor:
        lent_P = torch.empty_like(row_P, dtype=logp_RK.dtype)
        has_mix = mix_P >= 0
        mixed, alone = torch.nonzero(has_mix)[:, 0], torch.nonzero(~has_mix)[:, 0]
        if mixed.numel():
            lent_P[mixed] = self.pool.mixed(mix_P[mixed], row_P[mixed], logp_RK) + log_boost
        if alone.numel():
            parent, which = torch.unique(node_R[row_P[alone]], return_inverse=True)
            count = self.count_children(level, parent, self.levels[level].bits).clamp(min=1)
            lent_P[alone] = -torch.log(count.to(logp_RK.dtype))[which]
        return lent_P

    def _without(self, leaf_N: Tensor) -> "LiveTrie":
        """Clear leaves, and upwards every prefix that has no live child left."""
        levels, gone = list(self.levels), torch.unique(leaf_N[leaf_N >= 0])
        for level in range(self.depth, 0, -1):
            old = levels[level - 1]
            nodes = self.num_nodes(level)
            bits = _all_set(nodes, self.device) if old.bits is None else old.bits
            gone = gone[has_bit(bits, gone)]
            if not gone.numel():
                break
            bits = with_bits(bits, gone, False, nodes)
            levels[level - 1] = replace(old, bits=bits, live=old.live - gone.numel())
            if level > 1:
                parent = torch.unique(self.parent_and_code(level, gone)[0])
                gone = parent[self.count_children(level - 1, parent, bits) == 0]
        return replace(self, levels=tuple(levels))

    def _with(self, codes_NL: Tensor) -> "LiveTrie":
        """Set the leaves of some SIDs and their prefixes, making the nodes that are missing."""
        levels, added_slot_M = list(self.levels), self.added_slot_M
        node_N = torch.zeros(codes_NL.shape[0], dtype=torch.int64, device=self.device)
        for level, code_N in enumerate(codes_NL.to(self.device).unbind(1)):
            key_N, child_N = node_N * self.codes + code_N, self._child(level, node_N, code_N)
            old = levels[level]
            if (missing := child_N < 0).any():
                # numbered in the order they came, which is the order of slots
                key_m, node_m = _first_come(key_N[missing], self.num_nodes(level + 1))
                by_key = torch.argsort(key_m)
                added = old.added.with_nodes(key_m[by_key], node_m[by_key])
                old = replace(old, added=added, added_key=torch.cat([old.added_key, key_m]))
                child_N = torch.where(missing, added.child(node_N, code_N, self.codes), child_N)
                if level == self.depth - 1:
                    slot_m = torch.arange(self.num_slots, self.num_slots + key_m.numel(), device=self.device)
                    added_slot_M = torch.cat([added_slot_M, slot_m])
            levels[level] = self._revived(level + 1, old, torch.unique(child_N))
            node_N = child_N
        return replace(self, levels=tuple(levels), added_slot_M=added_slot_M)

    def _revived(self, level: int, changed: LiveLevel, node_N: Tensor) -> LiveLevel:
        nodes = self.base.num_nodes(level) + changed.added_key.numel()
        if changed.bits is None:
            return replace(changed, live=nodes)
        bits = with_bits(changed.bits, node_N[:0], True, nodes)
        dead_N = node_N[~has_bit(bits, node_N)]
        return replace(changed, bits=with_bits(bits, dead_N, True, nodes), live=changed.live + dead_N.numel())

    def _with_mixes(self, smoothing: Mapping[Sid, SiblingMix]) -> "LiveTrie":
        by_length: dict[int, list[Sid]] = defaultdict(list)
        for prefix in smoothing:
            by_length[len(prefix)].append(prefix)
        levels = list(self.levels)
        for length, prefixes in by_length.items():
            if not 1 <= length <= self.depth:
                continue
            codes_Nl = _sids(prefixes, length).to(self.device)
            key_N = self.find(codes_Nl[:, :-1]) * self.codes + codes_Nl[:, -1]
            level = levels[length - 1]
            folded_N, added_N = level.folded.place(key_N), level.added.place(key_N)
            wanted = torch.nonzero((folded_N >= 0) | (added_N >= 0))[:, 0]
            mix_n = self.pool.append([smoothing[prefixes[n]] for n in wanted.tolist()])
            folded_n, added_n = folded_N[wanted], added_N[wanted]
            levels[length - 1] = replace(
                level,
                folded=level.folded.with_mixes(folded_n[folded_n >= 0], mix_n[folded_n >= 0]),
                added=level.added.with_mixes(added_n[added_n >= 0], mix_n[added_n >= 0]),
            )
        return replace(self, levels=tuple(levels))


def _sids(sids: Sequence[Sid], length: int) -> Tensor:
    flat = np.fromiter(chain.from_iterable(sids), np.int64, len(sids) * length)
    return torch.from_numpy(flat.reshape(-1, length))


def _first_come(key_N: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Distinct keys in the order of their first coming, and the numbers from ``first`` on that they get."""
    key_m, which = torch.unique(key_N, return_inverse=True)
    came = torch.full_like(key_m, key_N.numel()).scatter_reduce(
        0, which, torch.arange(key_N.numel(), device=key_N.device), "amin"
    )
    ordered = key_m[torch.argsort(came)]
    return ordered, torch.arange(first, first + ordered.numel(), device=key_N.device)


def _all_set(nodes: int, device: torch.device) -> Tensor:
    return pack_bits(torch.ones(nodes, dtype=torch.bool, device=device))


def _nbytes(array: Tensor | None) -> int:
    return 0 if array is None else array.nbytes
