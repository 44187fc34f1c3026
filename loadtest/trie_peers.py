"""Two other ways to keep a beam inside a catalogue, written plainly, for `bench_trie` to set ours beside.

`StaticBeam` follows STATIC's published design: dense bit masks over the codes at the first two levels, below them rows
of child arrays read at the widest row's length, and a mask over all K codes at every level. `DictBeam` is the usual
per-beam mask from a dictionary of prefixes. Neither has filters, changes, ragged beams or dead prefixes.

Shapes: U users, W beams, R = U * W rows, L levels, K codes, B children of the widest node.
"""

from collections import defaultdict
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.model.semantic_ids import Sid
from service.model.trie import SidTrie

NEVER = float("-inf")
DENSE_LEVELS = 2


class Constraint(Protocol):
    """What a beam asks of a catalogue."""

    def masked(self, level: int, codes_Rn: Tensor, node_R: Tensor, logp_RK: Tensor) -> Tensor:
        """The log-probabilities [R, K] with -inf where no SID goes on."""
        ...

    def child(self, level: int, node_R: Tensor, code_R: Tensor) -> Tensor:
        """The nodes after one more code, int64 [R]."""
        ...


class StaticBeam:
    """Bit masks, then rows padded to the widest."""

    def __init__(self, trie: SidTrie) -> None:
        self._trie = trie
        self._mask: dict[int, Tensor] = {}
        self._widest: dict[int, int] = {}
        for level, arrays in enumerate(trie.levels):
            if level < DENSE_LEVELS:
                nodes = arrays.start.numel() - 1
                mask = torch.zeros(nodes, trie.codes, dtype=torch.bool)
                parent = torch.repeat_interleave(torch.arange(nodes), arrays.start.diff())
                mask[parent, arrays.code.long()] = True
                self._mask[level] = mask
            else:
                self._widest[level] = int(arrays.start.diff().max())

    def masked(self, level: int, codes_Rn: Tensor, node_R: Tensor, logp_RK: Tensor) -> Tensor:
        """See `Constraint.masked`."""
        if level in self._mask:
            return logp_RK.masked_fill(~self._mask[level][node_R], NEVER)
        code_RB, real_RB, _ = self._window(level, node_R)
        mask = torch.zeros(logp_RK.shape[0], logp_RK.shape[1] + 1, dtype=torch.bool)
        mask.scatter_(1, torch.where(real_RB, code_RB, logp_RK.shape[1]), True)
        return logp_RK.masked_fill(~mask[:, :-1], NEVER)

    def child(self, level: int, node_R: Tensor, code_R: Tensor) -> Tensor:
        """See `Constraint.child`."""
        if level in self._mask:
            return self._trie.child(level, node_R, code_R).clamp(min=0)
        code_RB, real_RB, first_R = self._window(level, node_R)
        return first_R + (real_RB & (code_RB == code_R[:, None])).int().argmax(1)

    def _window(self, level: int, node_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        arrays = self._trie.levels[level]
        first_R = arrays.start[node_R].long()
        place_RB = first_R[:, None] + torch.arange(self._widest[level])
        real_RB = place_RB < arrays.start[node_R + 1][:, None]
        return arrays.code[place_RB.clamp(max=arrays.code.numel() - 1)].long(), real_RB, first_R


class DictBeam:
    """A Python dictionary from prefix to codes, asked beam by beam."""

    def __init__(self, codes_NL: NDArray[np.integer]) -> None:
        found: dict[Sid, set[int]] = defaultdict(set)
        for sid in codes_NL.tolist():
            for length in range(len(sid)):
                found[tuple(sid[:length])].add(sid[length])
        self._codes = {prefix: list(codes) for prefix, codes in found.items()}

    def masked(self, level: int, codes_Rn: Tensor, node_R: Tensor, logp_RK: Tensor) -> Tensor:
        """See `Constraint.masked`."""
        mask = torch.full_like(logp_RK, NEVER)
        for row, prefix in enumerate(codes_Rn.tolist()):
            mask[row, self._codes.get(tuple(prefix), [])] = 0.0
        return logp_RK + mask

    def child(self, level: int, node_R: Tensor, code_R: Tensor) -> Tensor:
        """Prefixes are the state: there are no nodes."""
        return node_R


class NoConstraint:
    """Every code may follow: the selection that any beam search pays for."""

    def masked(self, level: int, codes_Rn: Tensor, node_R: Tensor, logp_RK: Tensor) -> Tensor:
        """As they are."""
        return logp_RK

    def child(self, level: int, node_R: Tensor, code_R: Tensor) -> Tensor:
        """There are no nodes."""
        return node_R


def masked_beam(constraint: Constraint, logp_RK: Tensor, users: int, width: int, levels: int) -> Tensor:
    """A dense beam over made-up log-probabilities; the best SIDs int64 [U, W, L]."""
    codes = logp_RK.shape[1]
    score_UW, node_UW = torch.zeros(users, 1), torch.zeros(users, 1, dtype=torch.int64)
    codes_UWn = torch.zeros(users, 1, 0, dtype=torch.int64)
    for level in range(levels):
        beams = score_UW.shape[1]
        rows = logp_RK[: users * beams]
        masked_RK = constraint.masked(level, codes_UWn.flatten(0, 1), node_UW.flatten(), rows)
        total_UC = (score_UW[..., None] + masked_RK.view(users, beams, codes)).flatten(1)
        score_UW, place_UW = total_UC.topk(min(width, total_UC.shape[1]))
        parent_UW, code_UW = place_UW // codes, place_UW % codes
        node_UW = constraint.child(level, node_UW.gather(1, parent_UW).flatten(), code_UW.flatten()).view_as(code_UW)
        kept = codes_UWn.gather(1, parent_UW[..., None].expand(-1, -1, codes_UWn.shape[2]))
        codes_UWn = torch.cat([kept, code_UW[..., None]], -1)
    return codes_UWn
