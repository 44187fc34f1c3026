"""Users of one batch who search the same version under the same filter: they are expanded together.

A query says where one user searches. A group turns its beams into candidates: children that exist, minus those that
are not live, not legal or dead because all their leaves are excluded. It scores and selects nothing.

Shapes: U users of the batch, G beams of the group, D dead prefixes, L levels, K codes, E candidate edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.model.legal_nodes import LegalNodes
from service.model.live_trie import LiveTrie
from service.model.node_bits import has_bit
from service.model.trie import Children


@dataclass(frozen=True, slots=True)
class BeamQuery:
    """One user's search: in which version, how wide, and which SIDs (int64 [n, L]) not to return.

    ``num_results`` is how many SIDs are wanted, None for as many as the beam is wide; ``legal`` is what the user's
    filter leaves of the version, None for all of it. Users who share one ``legal`` object are expanded together.
    """

    trie: LiveTrie
    width: int
    excluded: Tensor
    num_results: int | None = None
    legal: LegalNodes | None = None


@dataclass(frozen=True, slots=True)
class DeadPrefixes:
    """Prefixes of one length that a user need not enter: user, parent node and own code, int64 [D] each."""

    user_D: Tensor
    parent_D: Tensor
    code_D: Tensor


@dataclass(frozen=True, slots=True)
class BeamGroup:
    """``user_n`` int64 are the group's users, ascending; ``dead`` has one entry per level, empty without exclusions."""

    trie: LiveTrie
    legal: LegalNodes
    user_n: Tensor
    dead: tuple[DeadPrefixes, ...]

    def is_exact(self, width: int) -> bool:
        """Whether all legal prefixes of the inner levels together need no more rows than a beam may take."""
        inner = self.legal.counts[:-1]
        return sum(inner) <= len(inner) * width

    def candidates(self, level: int, node_G: Tensor, user_G: Tensor, total_GK: Tensor) -> tuple[Children, Tensor]:
        """The children of level-``level`` beams and their total scores [E], -inf for those that may not be entered.

        ``total_GK`` holds the scores that all codes would have; ``user_G`` is ascending.
        """
        found = self.trie.expand(level, node_G)
        if found.cell_E is None:
            total_E = total_GK.flatten().masked_fill_(found.node_E < 0, float("-inf"))
        else:
            total_E = total_GK.take(found.cell_E)
        bits = self.legal.bits[level]
        if bits is not None:
            total_E = total_E.masked_fill_(~has_bit(bits, found.node_E), float("-inf"))
        if self.dead:
            total_E[found.places(self._dead_cells(level, node_G, user_G))] = float("-inf")
        return found, total_E

    def _dead_cells(self, level: int, node_G: Tensor, user_G: Tensor) -> Tensor:
        """The cells of dead children of the beams."""
        dead, nodes = self.dead[level], self.trie.num_nodes(level)
        beam_G, order_G = torch.sort(user_G * nodes + node_G)
        wanted_D = dead.user_D * nodes + dead.parent_D
        place_D = torch.searchsorted(beam_G, wanted_D).clamp(max=beam_G.numel() - 1)
        met = beam_G[place_D] == wanted_D
        return order_G[place_D[met]] * self.trie.codes + dead.code_D[met]


def group_queries(queries: Sequence[BeamQuery]) -> list[BeamGroup]:
    """The groups of a batch."""
    members: dict[tuple[int, int], list[int]] = {}
    for user, query in enumerate(queries):
        members.setdefault((id(query.trie), id(query.legal)), []).append(user)
    return [_group(queries, users) for users in members.values()]


def _group(queries: Sequence[BeamQuery], users: Sequence[int]) -> BeamGroup:
    trie = queries[users[0]].trie
    legal = queries[users[0]].legal or LegalNodes.live(trie)
    excluded = [queries[user].excluded.to(trie.device) for user in users]
    user_n = torch.tensor(users, device=trie.device)
    owner_N = torch.repeat_interleave(user_n, torch.tensor([len(sids) for sids in excluded], device=trie.device))
    return BeamGroup(trie, legal, user_n, _dead(trie, legal, owner_N, torch.cat(excluded)))


def _dead(trie: LiveTrie, legal: LegalNodes, user_N: Tensor, sids_NL: Tensor) -> tuple[DeadPrefixes, ...]:
    """The excluded leaves and, upwards, the prefixes whose legal children are all dead for that user."""
    if not len(sids_NL):
        return ()
    leaf_N = trie.find(sids_NL)
    user_N, leaf_N = user_N[leaf_N >= 0], leaf_N[leaf_N >= 0]
    if (bits := legal.bits[-1]) is not None and leaf_N.numel():
        met = has_bit(bits, leaf_N)
        user_N, leaf_N = user_N[met], leaf_N[met]
    if not leaf_N.numel():
        return ()
    user_D, node_D = _distinct(user_N, leaf_N, trie.num_slots)[:2]
    found = []
    for level in range(trie.depth, 0, -1):
        parent_D, code_D = trie.parent_and_code(level, node_D)
        found.append(DeadPrefixes(user_D, parent_D, code_D))
        user_P, parent_P, dead_P = _distinct(user_D, parent_D, trie.num_nodes(level - 1))
        spent = dead_P == trie.count_children(level - 1, parent_P, legal.bits[level - 1])
        user_D, node_D = user_P[spent], parent_P[spent]
    return tuple(found[::-1])


def _distinct(user_N: Tensor, node_N: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct pairs and how often each comes."""
    pair, count = torch.unique(user_N * nodes + node_N, return_counts=True)
    return torch.div(pair, nodes, rounding_mode="floor"), pair % nodes, count
