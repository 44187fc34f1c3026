"""Trie-constrained beam search over SIDs, for many users at once.

The one implementation: training evaluation, the torch engine and vLLM's worker differ only in the `BeamModel` that
scores the next level. A candidate is always a child of a live beam, so an illegal SID cannot be produced; excluded
leaves take their dead prefixes with them, so no beam is wasted. Scores are sums of log-probabilities, each normalised
over the K codes of its level (what fine-tuning optimises), with the trie's smoothing for new nodes. Fewer legal SIDs
than beams: a shorter list.

Shapes: U users, W beam width, L levels, K codes, R = U * W rows, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from service.model.trie import Edges, SidTrie


class BeamModel(Protocol):
    """Scores the codes of one level after the beams' codes so far."""

    def first(self) -> Tensor:
        """Log-probabilities of the first code per user, float32 [U, K]."""
        ...

    def next(self, codes_UWl: Tensor, parent_UW: Tensor) -> Tensor:
        """Log-probabilities of the code after ``codes_UWl``, float32 [U * W, K].

        ``parent_UW`` is the beam of the previous call that each beam extends (all zero at the first call).
        """
        ...


@dataclass(frozen=True, slots=True)
class Beams:
    """One user's answer, best first: SIDs int64 [n, L], their scores float32 [n] and the scores per level [n, L]."""

    codes_nL: Tensor
    score_n: Tensor
    level_score_nL: Tensor


@dataclass(frozen=True, slots=True)
class _State:
    """Live beams of all users; a dead beam has score -inf, node 0 and codes 0."""

    score_UW: Tensor
    node_UW: Tensor
    parent_UW: Tensor
    codes_UWl: Tensor
    level_score_UWl: Tensor

    @property
    def alive_UW(self) -> Tensor:
        return torch.isfinite(self.score_UW)


@torch.no_grad()
def beam_search(
    trie: SidTrie,
    model: BeamModel,
    widths: Sequence[int],
    excluded: Sequence[Tensor],
    *,
    log_boost: float = 0.0,
) -> list[Beams]:
    """The best ``widths[u]`` SIDs of each user.

    Args:
        trie: the SIDs that exist.
        model: scores one level after another.
        widths: beam width per user, >= 1.
        excluded: per user the leaves (int64, of this trie) that must not be returned.
        log_boost: added to the smoothed score of new nodes.
    """
    users, width = len(widths), max(widths)
    if not trie.num_leaves:
        return [_answer(_dead(_root(1), 1), 0)] * users
    dead = _dead_keys(trie, excluded)
    state = _root(users)
    for level in range(trie.depth):
        # the model is asked only for beams that exist: the root needs no forward step
        logp_RK = model.first() if level == 0 else model.next(state.codes_UWl, state.parent_UW)
        edges = trie.expand(level, state.node_UW.flatten(), state.alive_UW.flatten())
        edge_score_E = trie.smooth(level, logp_RK, edges, log_boost)
        user_E = torch.div(edges.row_E, state.score_UW.shape[1], rounding_mode="floor")
        total_E = state.score_UW.flatten()[edges.row_E] + edge_score_E
        if dead is not None:
            is_dead = torch.isin(user_E * trie.num_nodes(level + 1) + edges.child_E, dead[level])
            total_E = total_E.masked_fill(is_dead, float("-inf"))
        state = _select(state, edges, user_E, total_E, edge_score_E, width, widths)
    return [_answer(state, user) for user in range(users)]


def level_log_probs(hidden_RD: Tensor, head_KD: Tensor) -> Tensor:
    """Log-probabilities [R, K] over one level's codes: logits on the K rows that can be right, normalised over them."""
    return F.log_softmax(F.linear(hidden_RD, head_KD).float(), -1)


def _root(users: int) -> _State:
    zeros = torch.zeros(users, 1, dtype=torch.int64)
    empty = torch.zeros(users, 1, 0)
    return _State(torch.zeros(users, 1), zeros, zeros, empty.long(), empty)


def _dead_keys(trie: SidTrie, excluded: Sequence[Tensor]) -> list[Tensor] | None:
    if not any(leaves.numel() for leaves in excluded):
        return None
    per_user = [trie.dead_nodes(leaves) for leaves in excluded]
    return [
        torch.cat([user * trie.num_nodes(level + 1) + dead[level] for user, dead in enumerate(per_user)])
        for level in range(trie.depth)
    ]


def _select(
    state: _State,
    edges: Edges,
    user_E: Tensor,
    total_E: Tensor,
    edge_score_E: Tensor,
    width: int,
    widths: Sequence[int],
) -> _State:
    """Keep the best candidates of each user; users with fewer get dead beams."""
    users, beams = state.score_UW.shape
    count_U = torch.bincount(user_E, minlength=users)
    first_U = torch.cumsum(count_U, 0) - count_U
    most = max(int(count_U.max()), width)
    place_E = torch.arange(user_E.numel()) - first_U[user_E]
    candidates = torch.full((users, most), float("-inf"))
    candidates[user_E, place_E] = total_E
    score_UW, place_UW = candidates.topk(width, dim=1)
    narrow = torch.arange(width)[None] >= torch.tensor(widths)[:, None]
    score_UW = score_UW.masked_fill(narrow, float("-inf"))
    alive = torch.isfinite(score_UW)
    edge_UW = torch.where(alive, first_U[:, None] + place_UW, 0)
    if not user_E.numel():
        return _dead(state, width)
    parent_UW = torch.where(alive, edges.row_E[edge_UW] % beams, 0)
    codes = torch.where(alive, edges.code_E[edge_UW], 0)
    gather = parent_UW[..., None].expand(-1, -1, state.codes_UWl.shape[2])
    return _State(
        score_UW=score_UW,
        node_UW=torch.where(alive, edges.child_E[edge_UW], 0),
        parent_UW=parent_UW,
        codes_UWl=torch.cat([state.codes_UWl.gather(1, gather), codes[..., None]], -1),
        level_score_UWl=torch.cat([state.level_score_UWl.gather(1, gather), edge_score_E[edge_UW][..., None]], -1),
    )


def _dead(state: _State, width: int) -> _State:
    users, _, length = state.codes_UWl.shape
    zeros = torch.zeros(users, width, dtype=torch.int64)
    codes = torch.zeros(users, width, length + 1, dtype=torch.int64)
    return _State(torch.full((users, width), float("-inf")), zeros, zeros, codes, codes.float())


def _answer(state: _State, user: int) -> Beams:
    alive = state.alive_UW[user]
    return Beams(state.codes_UWl[user][alive], state.score_UW[user][alive], state.level_score_UWl[user][alive])
