"""The SIDs of one moment as flat arrays: children are gathered, never a vocabulary-wide mask.

Level-l nodes are the distinct prefixes of length l in ascending order (node 0 of level 0 is the root; level-L nodes are
the leaves), so the children of a node are a range: two integers of four bytes per node say where it begins, two bytes
per child name its code. Where at least a quarter of the codes exist below the average node, as at the first levels, a
dense table of children stands beside them: reading a whole row costs less than gathering the few. Immutable; changes
lie beside it in `LiveTrie`. It knows nothing of items.

Shapes: N leaves or queries, L levels, K codes, R rows, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DENSE_SHARE = 4


@dataclass(frozen=True, slots=True)
class SiblingMix:
    """Trained codes beside a new node and the log-weights (summing to 1 in probability) it borrows from them."""

    codes: tuple[int, ...]
    log_weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Children:
    """All children of some rows: for each its cell ``row * K + code``, ascending int64 [E], and its node, int [E].

    Without ``cell_E`` the children are given as the whole grid [R * K] of cells, -1 where there is none.
    """

    cell_E: Tensor | None
    node_E: Tensor

    def cells(self, edge_N: Tensor) -> Tensor:
        """The cells of some edges, int64 [N]."""
        return edge_N if self.cell_E is None else self.cell_E[edge_N]

    def places(self, cell_N: Tensor) -> Tensor:
        """The edges at some cells that have one, int64 [N]."""
        return cell_N if self.cell_E is None else torch.searchsorted(self.cell_E, cell_N)


@dataclass(frozen=True, slots=True)
class TrieLevel:
    """Edges from level l to l+1.

    ``start`` int32 [nodes_l + 1], ``code`` int16 [nodes_l+1], ``table`` int32 [nodes_l + 1, K] or None: the child by
    parent and code, -1 where there is none, with an empty last row for nodes that are not of this trie.
    """

    start: Tensor
    code: Tensor
    table: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its arrays."""
        return (self.start, self.code) if self.table is None else (self.start, self.code, self.table)


class SidTrie:
    """An immutable prefix tree over distinct SIDs."""

    def __init__(self, levels: Sequence[TrieLevel], codes: int) -> None:
        self.levels = tuple(levels)
        self.codes = codes

    @classmethod
    def build(cls, codes_NL: NDArray[np.integer], codes: int, device: str | torch.device = "cpu") -> "SidTrie":
        """A trie of the rows of ``codes_NL``; equal rows share a leaf.

        Raises:
            ValueError: the array is not two-dimensional or a code is outside 0..codes-1.
        """
        if codes_NL.ndim != 2 or (codes_NL.size and not 0 <= codes_NL.min() <= codes_NL.max() < codes):
            raise ValueError(f"expected SIDs [N, L] of codes below {codes}")
        sorted_NL = codes_NL[_lexical_order(codes_NL, codes)]
        differs = np.zeros(len(sorted_NL), bool)
        differs[:1] = True
        levels, begins = [], np.zeros(1, np.int64)
        for column in sorted_NL.T:
            differs[1:] |= column[1:] != column[:-1]
            rows = np.flatnonzero(differs)
            # every row that begins a parent begins a child, too
            start = np.append(np.searchsorted(rows, begins), len(rows))
            levels.append(trie_level(start, column[rows], codes, device))
            begins = rows
        return cls(levels, codes)

    @property
    def device(self) -> torch.device:
        """Where the arrays lie."""
        return self.levels[0].start.device

    @property
    def depth(self) -> int:
        """L."""
        return len(self.levels)

    @property
    def num_leaves(self) -> int:
        """How many distinct SIDs exist."""
        return self.num_nodes(self.depth)

    @property
    def num_bytes(self) -> int:
        """Memory of all arrays, in bytes."""
        return sum(tensor.nbytes for level in self.levels for tensor in level.tensors)

    def num_nodes(self, level: int) -> int:
        """How many prefixes of length ``level`` exist."""
        return 1 if level == 0 else self.levels[level - 1].code.numel()

    def expand(self, level: int, node_R: Tensor) -> Children:
        """All children of level-``level`` nodes; numbers beyond the trie's own nodes have none."""
        arrays = self.levels[level]
        nodes = arrays.start.numel() - 1
        if arrays.table is not None:
            return Children(None, arrays.table.index_select(0, node_R.clamp(max=nodes)).flatten())
        first_R = arrays.start.index_select(0, node_R.clamp(max=nodes)).long()
        count_R = arrays.start.index_select(0, (node_R + 1).clamp(max=nodes)) - first_R
        row_E, child_E = ranges(first_R, count_R)
        return Children(row_E * self.codes + arrays.code.index_select(0, child_E), child_E)

    def child(self, level: int, node_N: Tensor, code_N: Tensor) -> Tensor:
        """The children of level-``level`` nodes by code, int64 [N]; -1 where there is none."""
        arrays = self.levels[level]
        nodes = arrays.start.numel() - 1
        known = (node_N >= 0) & (code_N >= 0) & (code_N < self.codes)
        node_N, code_N = torch.where(known, node_N, nodes).clamp(max=nodes), torch.where(known, code_N, 0)
        if arrays.table is not None:
            return arrays.table[node_N, code_N].long()
        low, end = arrays.start[node_N].long(), arrays.start[(node_N + 1).clamp(max=nodes)].long()
        high, last = end, max(arrays.code.numel() - 1, 0)
        if not arrays.code.numel():
            return torch.full_like(node_N, -1)
        for _ in range(self.codes.bit_length()):
            middle = (low + high) >> 1
            right = (middle < high) & (arrays.code[middle.clamp(max=last)] < code_N)
            low, high = torch.where(right, middle + 1, low), torch.where(right, high, middle)
        found = (low < end) & (arrays.code[low.clamp(max=last)] == code_N)
        return torch.where(found, low, -1)

    def find(self, codes_NL: Tensor) -> Tensor:
        """Level-l nodes of the prefixes int [N, l], int64 [N]; -1 where a prefix does not exist."""
        node_N = torch.zeros(codes_NL.shape[0], dtype=torch.int64, device=self.device)
        for level in range(codes_NL.shape[1]):
            node_N = self.child(level, node_N, codes_NL[:, level].to(self.device).long())
        return node_N

    def parents(self, level: int, node_N: Tensor) -> Tensor:
        """The parents of level-``level`` nodes (level >= 1), int64 [N]."""
        start = self.levels[level - 1].start
        return torch.searchsorted(start, node_N.to(start.dtype), right=True) - 1

    def children(self, level: int, node: int) -> NDArray[np.int64]:
        """The codes below one level-``level`` node, ascending, int64 [C]."""
        arrays = self.levels[level]
        below: NDArray[np.int64] = (
            arrays.code[int(arrays.start[node]) : int(arrays.start[node + 1])].long().cpu().numpy()
        )
        return below

    def leaf_range(self, level: int, node: int) -> tuple[int, int]:
        """The leaves below a level-``level`` node: from the first to before the second."""
        first, last = node, node + 1
        for arrays in self.levels[level:]:
            first, last = int(arrays.start[first]), int(arrays.start[last])
        return first, last

    def leaf_codes(self) -> Tensor:
        """All SIDs in leaf order, int64 [N, L]."""
        node = torch.arange(self.num_leaves, device=self.device)
        columns = []
        for level in range(self.depth, 0, -1):
            columns.append(self.levels[level - 1].code[node].long())
            node = self.parents(level, node)
        return torch.stack(columns[::-1], 1)


def trie_level(
    start: NDArray[np.integer], code: NDArray[np.integer], codes: int, device: str | torch.device
) -> TrieLevel:
    """One level's arrays on a device, with the dense table where it pays."""
    start_32, code_16 = (
        torch.from_numpy(array.astype(kind)).to(device) for array, kind in ((start, np.int32), (code, np.int16))
    )
    table, nodes = None, len(start) - 1
    if len(code) and nodes * codes <= DENSE_SHARE * len(code):
        table = torch.full((nodes + 1, codes), -1, dtype=torch.int32, device=device)
        child = torch.arange(len(code), device=device)
        parent = torch.repeat_interleave(torch.arange(nodes, device=device), start_32.diff())
        table[parent, code_16.long()] = child.int()
    return TrieLevel(start_32, code_16, table)


def ranges(first_R: Tensor, count_R: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the ranges [first, first + count): the owner of each entry, and the entry, both int64 [E]."""
    owner = torch.repeat_interleave(torch.arange(first_R.numel(), device=first_R.device), count_R)
    shift_R = first_R - (torch.cumsum(count_R, 0) - count_R)
    return owner, torch.arange(owner.numel(), device=first_R.device) + shift_R.index_select(0, owner)


def _lexical_order(codes_NL: NDArray[np.integer], codes: int) -> NDArray[np.int64]:
    """The rows in ascending order, each distinct row once: as few 63-bit words per row as hold it are sorted."""
    bits = max((codes - 1).bit_length(), 1)
    per_word = 63 // bits
    words = []
    for first in range(0, codes_NL.shape[1], per_word):
        word = np.zeros(len(codes_NL), np.int64)
        for column in codes_NL[:, first : first + per_word].T:
            word = (word << bits) | column.astype(np.int64)
        words.append(word)
    order = np.lexsort(words[::-1]) if len(words) > 1 else np.argsort(words[0])
    differs = np.ones(len(order), bool)
    differs[1:] = np.any([word[order[1:]] != word[order[:-1]] for word in words], axis=0)
    found: NDArray[np.int64] = order[differs]
    return found
