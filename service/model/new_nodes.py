"""The nodes of one trie level that have no trained leaf: found by parent, each with the mixture it borrows from.

Sorted by ``parent * K + code``, so the new children of a node are a range. A change makes a new object; unchanged
arrays are shared, and mixtures lie in an append-only `MixPool` that all catalogue versions share.

Shapes: M new nodes, R rows, P pairs of a row and a new child of its node, T terms of mixtures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.model.trie import SiblingMix, ranges


class MixPool:
    """Mixtures one behind another; what was once appended never changes, so readers need no lock."""

    def __init__(self, device: torch.device) -> None:
        self._start = torch.zeros(1, dtype=torch.int64, device=device)
        self._code = torch.zeros(0, dtype=torch.int16, device=device)
        self._log_weight = torch.zeros(0, device=device)
        self.mixes, self._terms = 0, 0

    @property
    def num_bytes(self) -> int:
        """Memory of its arrays, in bytes."""
        return self._start.nbytes + self._code.nbytes + self._log_weight.nbytes

    def append(self, mixes: Sequence[SiblingMix]) -> Tensor:
        """The numbers of the appended mixtures, int64 [len(mixes)]."""
        sizes = torch.tensor([len(mix.codes) for mix in mixes], device=self._start.device)
        ends = torch.cumsum(sizes, 0) + self._terms
        codes = torch.tensor([code for mix in mixes for code in mix.codes], dtype=torch.int16)
        weights = torch.tensor([weight for mix in mixes for weight in mix.log_weights], dtype=torch.float32)
        self._start = _put(self._start, self.mixes + 1, ends)
        self._code = _put(self._code, self._terms, codes)
        self._log_weight = _put(self._log_weight, self._terms, weights)
        numbers = torch.arange(self.mixes, self.mixes + len(mixes), device=self._start.device)
        self.mixes, self._terms = self.mixes + len(mixes), self._terms + codes.numel()
        return numbers

    def take(self, mix_M: Tensor) -> "MixPool":
        """A pool of some of the mixtures only, in this order."""
        taken = MixPool(self._start.device)
        first = self._start[mix_M]
        count = self._start[mix_M + 1] - first
        _, term = ranges(first, count)
        taken._start = torch.cat([taken._start, torch.cumsum(count, 0)])
        taken._code, taken._log_weight = self._code[term], self._log_weight[term]
        taken.mixes, taken._terms = mix_M.numel(), term.numel()
        return taken

    def mixed(self, mix_P: Tensor, row_P: Tensor, logp_RK: Tensor) -> Tensor:
        """Log of the weighted mean of the rows' probabilities of the mixtures' codes, float [P]."""
        first_P = self._start[mix_P]
        pair_T, term_T = ranges(first_P, self._start[mix_P + 1] - first_P)
        logp_T = self._log_weight[term_T] + logp_RK[row_P[pair_T], self._code[term_T].long()]
        return _segment_logsumexp(logp_T, pair_T, mix_P.numel())


@dataclass(frozen=True, slots=True)
class NewNodes:
    """``key`` int64 [M] ascending ``parent * K + code``, ``node`` int64 [M] and ``mix`` int64 [M], -1 for none."""

    key_M: Tensor
    node_M: Tensor
    mix_M: Tensor

    @classmethod
    def none(cls, device: torch.device) -> "NewNodes":
        """No nodes."""
        empty = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(empty, empty, empty)

    @property
    def num_bytes(self) -> int:
        """Memory of its arrays, in bytes."""
        return self.key_M.nbytes + self.node_M.nbytes + self.mix_M.nbytes

    def below(self, node_R: Tensor, codes: int) -> tuple[Tensor, Tensor]:
        """The new children of some nodes: row and place in these arrays, both int64 [P], by row and code."""
        first_R = torch.searchsorted(self.key_M, node_R * codes)
        return ranges(first_R, torch.searchsorted(self.key_M, (node_R + 1) * codes) - first_R)

    def place(self, key_N: Tensor) -> Tensor:
        """Where each key is found, int64 [N]; -1 where it is not."""
        if not self.key_M.numel():
            return torch.full_like(key_N, -1)
        place_N = torch.searchsorted(self.key_M, key_N).clamp(max=self.key_M.numel() - 1)
        return torch.where(self.key_M[place_N] == key_N, place_N, -1)

    def child(self, parent_N: Tensor, code_N: Tensor, codes: int) -> Tensor:
        """The new children of nodes by code, int64 [N]; -1 where there is none."""
        place_N = self.place(
            torch.where((parent_N >= 0) & (code_N >= 0) & (code_N < codes), parent_N * codes + code_N, -1)
        )
        if not self.key_M.numel():
            return place_N
        return torch.where(place_N >= 0, self.node_M[place_N.clamp(min=0)], -1)

    def with_nodes(self, key_N: Tensor, node_N: Tensor) -> "NewNodes":
        """These and some others, without mixtures, whose keys are ascending and not among them."""
        own, other = merge_places(self.key_M, key_N)
        merged = []
        for old, new in ((self.key_M, key_N), (self.node_M, node_N), (self.mix_M, torch.full_like(node_N, -1))):
            joined = torch.empty(old.numel() + new.numel(), dtype=old.dtype, device=old.device)
            joined[own], joined[other] = old, new
            merged.append(joined)
        return NewNodes(*merged)

    def with_mixes(self, place_N: Tensor, mix_N: Tensor) -> "NewNodes":
        """The same nodes, some with another mixture."""
        return NewNodes(self.key_M, self.node_M, self.mix_M.index_put((place_N,), mix_N))


def merge_places(old_M: Tensor, new_N: Tensor) -> tuple[Tensor, Tensor]:
    """Where the elements of two ascending arrays lie in their merger, int64 [M] and [N]."""
    new_place = torch.searchsorted(old_M, new_N) + torch.arange(new_N.numel(), device=new_N.device)
    is_old = torch.ones(old_M.numel() + new_N.numel(), dtype=torch.bool, device=old_M.device)
    is_old[new_place] = False
    return torch.nonzero(is_old)[:, 0], new_place


def _put(array: Tensor, first: int, values: Tensor) -> Tensor:
    """Write behind what is in use; an array that is too short is copied into one of twice the need."""
    need = first + values.numel()
    if need > array.numel():
        larger = torch.zeros(2 * need, dtype=array.dtype, device=array.device)
        larger[:first] = array[:first]
        array = larger
    array[first:need] = values.to(array.device)
    return array


def _segment_logsumexp(terms: Tensor, owner: Tensor, segments: int) -> Tensor:
    peak = terms.new_full((segments,), float("-inf")).scatter_reduce(0, owner, terms, "amax")
    safe = torch.where(torch.isfinite(peak), peak, 0.0)
    total = terms.new_zeros(segments).index_add(0, owner, torch.exp(terms - safe[owner]))
    return safe + torch.log(total)
