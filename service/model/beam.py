"""Trie-constrained beam search over SIDs, for many users at once.

The one implementation: training evaluation, the torch engine and vLLM's worker differ only in the `BeamModel` that
scores the next level. A candidate is always a child of a live beam, so an illegal SID cannot be produced; excluded
leaves take their dead prefixes with them, so no beam is wasted. Only live beams are rows: users may differ in width,
catalogue version and exclusions, and one whose beams have all died costs nothing.

Scores are sums of log-probabilities, each normalised over the K codes of its level (what fine-tuning optimises), with
the trie's smoothing for new nodes. Fewer legal SIDs than beams: a shorter list. Equal scores: the smaller SID first.

Shapes: U users, R live beams, n codes so far, L levels, K codes, E candidate edges, C candidates of the fullest user.
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

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        """Log-probabilities of the code after ``codes_Rn`` (int64), float32 [R, K].

        ``user_R`` int64 is ascending; a user without live beams has no rows, and R changes from call to call.
        ``parent_R`` int64 is the row of the previous call that each row extends, at the first call the user.
        """
        ...


@dataclass(frozen=True, slots=True)
class BeamQuery:
    """One user's search: where, how wide, and which SIDs (int64 [n, L]) not to return.

    ``num_results`` is how many SIDs are wanted, None for as many as the beam is wide.
    """

    trie: SidTrie
    width: int
    excluded: Tensor
    num_results: int | None = None


@dataclass(frozen=True, slots=True)
class Beams:
    """One user's answer, best first: SIDs int64 [n, L], their scores float32 [n] and the scores per level [n, L].

    ``exact`` says that no legal prefix was dropped on the way, so that the answer has no beam error.
    """

    codes_nL: Tensor
    score_n: Tensor
    level_score_nL: Tensor
    exact: bool = False


@dataclass(frozen=True, slots=True)
class _State:
    """Live beams of all users, users ascending and the beams of one by their codes; ``exact_U`` as in `Beams`."""

    user_R: Tensor
    parent_R: Tensor
    node_R: Tensor
    codes_Rn: Tensor
    score_R: Tensor
    level_score_Rn: Tensor
    exact_U: Tensor


@torch.no_grad()
def beam_search(model: BeamModel, queries: Sequence[BeamQuery], *, log_boost: float = 0.0) -> list[Beams]:
    """The best SIDs of each query's user, in the order of the queries.

    Args:
        model: scores one level after another.
        queries: one per user; their tries have equal L and K.
        log_boost: added to the smoothed score of new nodes.
    """
    depth = queries[0].trie.depth
    dead = [query.trie.dead_nodes(_leaves(query)) for query in queries]
    state = _roots(queries)
    for level in range(depth):
        if not state.user_R.numel():
            break
        if level == 0:
            logp_RK = model.first()[state.user_R]
        else:
            logp_RK = model.next(state.codes_Rn, state.user_R, state.parent_R)
        edges, score_E = _candidates(queries, level, state, logp_RK, [nodes[level] for nodes in dead], log_boost)
        last = level == depth - 1
        keep = [query.num_results or query.width if last else query.width for query in queries]
        state = _select(state, edges, score_E, torch.tensor(keep), last)
    return [_answer(state, user, depth) for user in range(len(queries))]


def level_log_probs(hidden_RD: Tensor, head_KD: Tensor) -> Tensor:
    """Log-probabilities [R, K] over one level's codes: logits on the K rows that can be right, normalised over them."""
    return F.log_softmax(F.linear(hidden_RD, head_KD).float(), -1)


def _leaves(query: BeamQuery) -> Tensor:
    leaves = query.trie.find(query.excluded)
    return leaves[leaves >= 0]


def _roots(queries: Sequence[BeamQuery]) -> _State:
    user_R = torch.tensor([user for user, query in enumerate(queries) if query.trie.num_leaves], dtype=torch.int64)
    empty = torch.zeros(user_R.numel(), 0)
    exact_U = torch.ones(len(queries), dtype=torch.bool)
    zeros = torch.zeros_like(user_R)
    return _State(user_R, user_R, zeros, empty.long(), torch.zeros(user_R.numel()), empty, exact_U)


def _candidates(
    queries: Sequence[BeamQuery],
    level: int,
    state: _State,
    logp_RK: Tensor,
    dead: Sequence[Tensor],
    log_boost: float,
) -> tuple[Edges, Tensor]:
    """All legal children of all beams and their own log-probabilities [E]; -inf for dead ones."""
    parts = []
    for trie in {id(query.trie): query.trie for query in queries}.values():
        users = [user for user, query in enumerate(queries) if query.trie is trie]
        row_G = torch.nonzero(torch.isin(state.user_R, torch.tensor(users)))[:, 0]
        edges = trie.expand(level, state.node_R[row_G])
        score_E = trie.smooth(level, logp_RK[row_G], edges, log_boost)
        edges = Edges(row_G[edges.row_E], edges.code_E, edges.child_E)
        nodes = trie.num_nodes(level + 1)
        gone = torch.cat([user * nodes + dead[user] for user in users])
        if gone.numel():
            is_dead = torch.isin(state.user_R[edges.row_E] * nodes + edges.child_E, gone)
            score_E = score_E.masked_fill(is_dead, float("-inf"))
        parts.append((edges, score_E))
    rows, codes, children = (
        torch.cat([getattr(edges, name) for edges, _ in parts]) for name in ("row_E", "code_E", "child_E")
    )
    order = torch.argsort(rows, stable=True) if len(parts) > 1 else slice(None)
    return Edges(rows[order], codes[order], children[order]), torch.cat([score for _, score in parts])[order]


def _select(state: _State, edges: Edges, score_E: Tensor, keep_U: Tensor, last: bool) -> _State:
    """Keep the best candidates of each user; of equal ones those with the smaller codes."""
    total_E = state.score_R[edges.row_E] + score_E
    user_E = state.user_R[edges.row_E]
    count_U = torch.bincount(user_E, minlength=keep_U.numel())
    first_U = torch.cumsum(count_U, 0) - count_U
    place_C = torch.arange(int(count_U.max()))
    padded_UC = total_E[(first_U[:, None] + place_C).clamp(max=total_E.numel() - 1)]
    # comparing with -inf is false for NaN, too
    real_UC = (place_C < count_U[:, None]) & (padded_UC > float("-inf"))
    rank_UC = torch.argsort(
        torch.argsort(padded_UC.masked_fill(~real_UC, float("-inf")), dim=1, descending=True, stable=True), dim=1
    )
    chosen_UC = real_UC & (rank_UC < keep_U[:, None])
    user_R, place_R = torch.nonzero(chosen_UC, as_tuple=True)
    edge_R = first_U[user_R] + place_R
    parent_R = edges.row_E[edge_R]
    return _State(
        user_R=user_R,
        parent_R=parent_R,
        node_R=edges.child_E[edge_R],
        codes_Rn=torch.cat([state.codes_Rn[parent_R], edges.code_E[edge_R, None]], 1),
        score_R=total_E[edge_R],
        level_score_Rn=torch.cat([state.level_score_Rn[parent_R], score_E[edge_R, None]], 1),
        exact_U=state.exact_U if last else state.exact_U & (real_UC.sum(1) <= keep_U),
    )


def _answer(state: _State, user: int, depth: int) -> Beams:
    row_n = torch.nonzero(state.user_R == user)[:, 0]
    row_n = row_n[torch.argsort(state.score_R[row_n], descending=True, stable=True)]
    codes_nL, level_score_nL = state.codes_Rn[row_n], state.level_score_Rn[row_n]
    if not row_n.numel():  # the search may have ended before the last level
        codes_nL, level_score_nL = codes_nL.new_zeros(0, depth), level_score_nL.new_zeros(0, depth)
    return Beams(codes_nL, state.score_R[row_n], level_score_nL, bool(state.exact_U[user]))
