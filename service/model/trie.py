"""The SIDs that exist, as flat arrays: children are gathered, never a vocabulary-wide mask.

Level-l nodes are the sorted distinct prefixes of length l (node 0 of level 0 is the root; level-L nodes are the
leaves). One int64 key per edge, ``parent * K + code``, gives code, parent and binary search at once. Immutable: a
change builds a new trie beside the old one. Nodes without a trained leaf are *new*: a model never generates them by
itself, so each may carry the mixture of trained siblings that lends it probability (`smoothing`). It knows nothing of
items.

Shapes: N leaves, L levels, K codes, R rows, E edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.semantic_ids import Sid


@dataclass(frozen=True, slots=True)
class SiblingMix:
    """Trained codes beside a new node and the log-weights (summing to 1 in probability) it borrows from them."""

    codes: tuple[int, ...]
    log_weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Edges:
    """All children of some rows: for each edge its row, code and child node, int64 [E]."""

    row_E: Tensor
    code_E: Tensor
    child_E: Tensor


@dataclass(frozen=True, slots=True)
class TrieLevel:
    """Edges from level l to l+1: ``start`` [nodes_l + 1], ``key`` [nodes_l+1].

    ``new`` [nodes_l+1] marks children without trained leaves;
    ``mix_start`` [nodes_l+1 + 1] points into ``mix_code`` / ``mix_log_weight``.
    """

    start: Tensor
    key: Tensor
    new: Tensor
    mix_start: Tensor
    mix_code: Tensor
    mix_log_weight: Tensor
    any_new: bool


class SidTrie:
    """An immutable prefix tree over distinct SIDs."""

    def __init__(self, levels: Sequence[TrieLevel], codes: int) -> None:
        self._levels = tuple(levels)
        self.codes = codes

    @classmethod
    def build(
        cls,
        codes_NL: NDArray[np.integer],
        codes: int,
        *,
        trained_N: NDArray[np.bool_] | None = None,
        smoothing: Mapping[Sid, SiblingMix] | None = None,
    ) -> "SidTrie":
        """A trie of the rows of ``codes_NL``; equal rows share a leaf, which is trained if any of them is.

        Raises:
            ValueError: the array is not two-dimensional or a code is outside 0..codes-1.
        """
        if codes_NL.ndim != 2 or (codes_NL.size and not 0 <= codes_NL.min() <= codes_NL.max() < codes):
            raise ValueError(f"expected SIDs [N, L] of codes below {codes}")
        trained = np.ones(len(codes_NL), bool) if trained_N is None else trained_N
        leaves, inverse = np.unique(codes_NL.astype(np.int64), axis=0, return_inverse=True)
        trained_leaf = np.zeros(len(leaves), bool)
        np.logical_or.at(trained_leaf, inverse.reshape(-1), trained)
        levels = []
        node_of_leaf = np.zeros(len(leaves), np.int64)
        nodes = 1
        for level in range(codes_NL.shape[1]):
            keys, node_of_leaf_next = np.unique(node_of_leaf * codes + leaves[:, level], return_inverse=True)
            trained_node = np.zeros(len(keys), bool)
            np.logical_or.at(trained_node, node_of_leaf_next, trained_leaf)
            first_leaf = np.searchsorted(node_of_leaf_next, np.arange(len(keys)))
            mixes = _mixes(leaves[first_leaf, : level + 1], ~trained_node, smoothing or {})
            start = np.searchsorted(keys, np.arange(nodes + 1) * codes)
            levels.append(_level(start, keys, ~trained_node, mixes))
            node_of_leaf, nodes = node_of_leaf_next.reshape(-1), len(keys)
        return cls(levels, codes)

    @property
    def depth(self) -> int:
        """L."""
        return len(self._levels)

    @property
    def num_leaves(self) -> int:
        """How many distinct SIDs exist."""
        return self.num_nodes(self.depth)

    def num_nodes(self, level: int) -> int:
        """How many prefixes of length ``level`` exist."""
        return 1 if level == 0 else self._levels[level - 1].key.numel()

    @property
    def num_bytes(self) -> int:
        """Memory of all arrays, in bytes."""
        tensors = [
            t for lv in self._levels for t in (lv.start, lv.key, lv.new, lv.mix_start, lv.mix_code, lv.mix_log_weight)
        ]
        return sum(t.numel() * t.element_size() for t in tensors)

    def expand(self, level: int, node_R: Tensor, alive_R: Tensor | None = None) -> Edges:
        """All children of level-``level`` nodes; rows with ``alive_R`` false have none."""
        start = self._levels[level].start
        first_R = start[node_R]
        count_R = start[node_R + 1] - first_R
        if alive_R is not None:
            count_R = count_R * alive_R
        row_E, child_E = _ranges(first_R, count_R)
        return Edges(row_E, self._levels[level].key[child_E] % self.codes, child_E)

    def smooth(self, level: int, logp_RK: Tensor, edges: Edges, log_boost: float) -> Tensor:
        """Log-probabilities [E] of the edges: the model's own, and for new children the boosted mixture of siblings.

        A new child of a parent without trained children gets the uniform 1 / (number of children), unboosted.
        """
        score_E = logp_RK[edges.row_E, edges.code_E]
        arrays = self._levels[level]
        if not arrays.any_new:
            return score_E
        new = torch.nonzero(arrays.new[edges.child_E])[:, 0]
        if not new.numel():
            return score_E
        child, row = edges.child_E[new], edges.row_E[new]
        first = arrays.mix_start[child]
        owner, entry = _ranges(first, arrays.mix_start[child + 1] - first)
        terms = arrays.mix_log_weight[entry] + logp_RK[row[owner], arrays.mix_code[entry]]
        mixed = _segment_logsumexp(terms, owner, new.numel()) + log_boost
        parent = torch.div(arrays.key[child], self.codes, rounding_mode="floor")
        siblings = (arrays.start[parent + 1] - arrays.start[parent]).to(score_E.dtype)
        has_mix = arrays.mix_start[child + 1] > first
        return score_E.index_put((new,), torch.where(has_mix, mixed, -torch.log(siblings)).to(score_E.dtype))

    def find(self, codes_NL: Tensor) -> Tensor:
        """Level-l nodes of the prefixes int [N, l], int64 [N]; -1 where a prefix does not exist."""
        node_N = torch.zeros(codes_NL.shape[0], dtype=torch.int64)
        for level in range(codes_NL.shape[1]):
            key = self._levels[level].key
            if not key.numel():
                return torch.full_like(node_N, -1)
            code_N = codes_NL[:, level].long()
            wanted = node_N * self.codes + code_N
            index = torch.searchsorted(key, wanted).clamp(max=key.numel() - 1)
            valid = (node_N >= 0) & (code_N >= 0) & (code_N < self.codes) & (key[index] == wanted)
            node_N = torch.where(valid, index, -1)
        return node_N

    def leaf_range(self, level: int, node: int) -> tuple[int, int]:
        """The leaves [first, last) below a node."""
        first, last = node, node + 1
        for lower in self._levels[level:]:
            first, last = int(lower.start[first]), int(lower.start[last])
        return first, last

    def children(self, level: int, node: int) -> NDArray[np.int64]:
        """The codes that follow a node, ascending."""
        arrays = self._levels[level]
        return (arrays.key[int(arrays.start[node]) : int(arrays.start[node + 1])] % self.codes).numpy()

    def is_new(self, level: int, node: int) -> bool:
        """Whether a level-``level`` node (level >= 1) has no trained leaf below it."""
        return bool(self._levels[level - 1].new[node])

    def dead_nodes(self, leaves: Tensor) -> list[Tensor]:
        """Per level 1..L the nodes whose leaves are all among ``leaves`` (distinct, int64): no beam need go there."""
        dead = [torch.unique(leaves)]
        for level in range(self.depth - 1, 0, -1):
            parents, counts = torch.unique(self._parents(level + 1, dead[0]), return_counts=True)
            start = self._levels[level].start
            dead.insert(0, parents[counts == start[parents + 1] - start[parents]])
        return dead

    def leaf_codes(self) -> Tensor:
        """All SIDs in leaf order, int64 [N, L]."""
        node = torch.arange(self.num_leaves)
        columns = []
        for level in range(self.depth, 0, -1):
            columns.append(self._levels[level - 1].key[node] % self.codes)
            node = self._parents(level, node)
        return torch.stack(columns[::-1], 1)

    def _parents(self, level: int, node: Tensor) -> Tensor:
        return torch.div(self._levels[level - 1].key[node], self.codes, rounding_mode="floor")


def _mixes(
    prefixes: NDArray[np.int64], new: NDArray[np.bool_], smoothing: Mapping[Sid, SiblingMix]
) -> list[SiblingMix | None]:
    mixes: list[SiblingMix | None] = [None] * len(new)
    for node in np.flatnonzero(new):
        mixes[node] = smoothing.get(tuple(prefixes[node].tolist()))
    return mixes


def _level(
    start: NDArray[np.int64], keys: NDArray[np.int64], new: NDArray[np.bool_], mixes: list[SiblingMix | None]
) -> TrieLevel:
    sizes = [len(mix.codes) if mix else 0 for mix in mixes]
    codes = [code for mix in mixes if mix for code in mix.codes]
    weights = [weight for mix in mixes if mix for weight in mix.log_weights]
    return TrieLevel(
        start=torch.from_numpy(start),
        key=torch.from_numpy(keys),
        new=torch.from_numpy(new),
        mix_start=torch.from_numpy(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)),
        mix_code=torch.tensor(codes, dtype=torch.int64),
        mix_log_weight=torch.tensor(weights, dtype=torch.float32),
        any_new=bool(new.any()),
    )


def _ranges(first_R: Tensor, count_R: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the ranges [first, first + count): the owner of each entry, and the entry."""
    owner = torch.repeat_interleave(torch.arange(first_R.numel(), device=first_R.device), count_R)
    shift_R = first_R - (torch.cumsum(count_R, 0) - count_R)
    return owner, torch.arange(owner.numel(), device=first_R.device) + shift_R[owner]


def _segment_logsumexp(terms: Tensor, owner: Tensor, segments: int) -> Tensor:
    peak = torch.full((segments,), float("-inf"), dtype=terms.dtype).scatter_reduce(0, owner, terms, "amax")
    safe = torch.where(torch.isfinite(peak), peak, 0.0)
    total = torch.zeros(segments, dtype=terms.dtype).index_add(0, owner, torch.exp(terms - safe[owner]))
    return safe + torch.log(total)
