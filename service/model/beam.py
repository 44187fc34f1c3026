"""Trie-constrained beam search over SIDs, for many users at once.

The one implementation: training evaluation, the torch engine and vLLM's worker differ only in the `BeamModel` that
scores the next level. A candidate is always a child of a live beam, so an illegal SID cannot be produced; prefixes
whose leaves are all removed, filtered out or excluded are never entered, so no beam is wasted. Only live beams are
rows: users may differ in width, catalogue version, filter and exclusions, and one whose beams have all died costs none.

Scores are sums of log-probabilities, each normalised over the K codes of its level: what fine-tuning optimises, and
what a filter or a change of the catalogue leaves as it is. (Normalised over the legal codes they would change with the
filter; over the whole vocabulary they would measure a choice that decoding never makes, for an output layer many times
as large.) New nodes borrow as `LiveTrie.smooth` says. Fewer legal SIDs than beams: a shorter list. Equal scores: the
smaller SID first, whoever else is in the batch.

Where scoring every legal prefix costs no more rows than the beam may take, nothing is pruned and the answer is exact:
a user's inner levels together may take ``(L - 1) * width`` rows, so one level takes at most that many.

Shapes: U users, R live beams, n codes so far, L levels, K codes, E candidate edges, C candidates of the fullest user.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from service.model.beam_group import BeamGroup, group_queries
from service.model.beam_group import BeamQuery as BeamQuery
from service.model.trie import Children

NEVER = float("-inf")


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


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The beams' children, group behind group, within a group user by user, a user's by cell (so by SID).

    Edges ``first_U .. first_U + count_U`` are a user's; a score of -inf is no candidate. Cells count the rows of their
    group: the beam behind a cell is ``row_R[shift_U + cell // K]``.
    """

    children: Children
    total_E: Tensor
    first_U: Tensor
    count_U: Tensor
    row_R: Tensor
    shift_U: Tensor

    def padded(self) -> Tensor:
        """Each user's scores side by side, float32 [U, C], padded with -inf."""
        users, most = self.count_U.numel(), int(self.count_U.max())
        if users * most == self.total_E.numel() and self.children.cell_E is None:
            return self.total_E.view(users, most)
        place_C = torch.arange(most, device=self.total_E.device)
        edge_UC = (self.first_U[:, None] + place_C).clamp(max=self.total_E.numel() - 1)
        return self.total_E.take(edge_UC).masked_fill_(place_C >= self.count_U[:, None], NEVER)


@torch.no_grad()
def beam_search(model: BeamModel, queries: Sequence[BeamQuery], *, log_boost: float = 0.0) -> list[Beams]:
    """The best SIDs of each query's user, in the order of the queries.

    Args:
        model: scores one level after another.
        queries: one per user; their tries have equal L and K.
        log_boost: added to the smoothed score of new nodes.
    """
    depth = queries[0].trie.depth
    groups = group_queries(queries)
    state = _roots(queries, groups)
    for level in range(depth):
        if not state.user_R.numel():
            break
        if level == 0:
            logp_RK = model.first()[state.user_R]
        else:
            logp_RK = model.next(state.codes_Rn, state.user_R, state.parent_R)
        logp_RK, found = _candidates(groups, level, state, logp_RK, log_boost)
        keep_U = _kept(queries, groups, level, state.exact_U.device)
        state = _select(state, found, logp_RK, keep_U, last=level == depth - 1)
    return _answers(state, depth)


def level_log_probs(hidden_RD: Tensor, head_KD: Tensor, bias_RK: Tensor | None = None) -> Tensor:
    """Log-probabilities [R, K] over one level's codes: logits on the K rows that can be right, normalised over them."""
    logits_RK = F.linear(hidden_RD, head_KD).float()
    return F.log_softmax(logits_RK if bias_RK is None else logits_RK + bias_RK, -1)


def _kept(queries: Sequence[BeamQuery], groups: Sequence[BeamGroup], level: int, device: torch.device) -> Tensor:
    """How many candidates of a level each user keeps, int64 [U]."""
    if level == queries[0].trie.depth - 1:
        return torch.tensor([query.num_results or query.width for query in queries], device=device)
    keep = [query.width for query in queries]
    for group in groups:
        for user in group.user_n.tolist():
            if group.is_exact(keep[user]):
                keep[user] = max(keep[user], group.legal.counts[level])
    return torch.tensor(keep, device=device)


def _roots(queries: Sequence[BeamQuery], groups: Sequence[BeamGroup]) -> _State:
    device = queries[0].trie.device
    user_R = torch.cat([group.user_n for group in groups if group.legal.counts[-1]] or [torch.zeros(0).long()])
    user_R = torch.sort(user_R.to(device)).values
    empty = torch.zeros(user_R.numel(), 0, device=device)
    score_R, exact_U = torch.zeros(user_R.numel(), device=device), torch.ones(len(queries), dtype=torch.bool)
    return _State(user_R, user_R, torch.zeros_like(user_R), empty.long(), score_R, empty, exact_U.to(device))


def _candidates(
    groups: Sequence[BeamGroup], level: int, state: _State, logp_RK: Tensor, log_boost: float
) -> tuple[Tensor, _Candidates]:
    """The log-probabilities with those of new nodes filled in, and all children that may be entered."""
    users, codes, device = state.exact_U.numel(), logp_RK.shape[1], logp_RK.device
    first_U, count_U, shift_U = (torch.zeros(users, dtype=torch.int64, device=device) for _ in range(3))
    parts: list[tuple[Children, Tensor]] = []
    rows: list[Tensor] = []
    edges = beams = 0
    every_R = torch.arange(state.user_R.numel(), device=device)
    for group in groups:
        mine = _rows_of(group, state, alone=len(groups) == 1)
        user_G, node_G = state.user_R[mine], state.node_R[mine]
        if not user_G.numel():
            continue
        logp_GK = logp_RK[mine]
        if group.trie.has_new(level):
            logp_GK = group.trie.smooth(level, node_G, logp_GK, log_boost)
            logp_RK = logp_RK.index_put((every_R[mine],), logp_GK)
        found, total_E = group.candidates(level, node_G, user_G, state.score_R[mine, None] + logp_GK)
        own = group.user_n
        bound = torch.stack([torch.searchsorted(user_G, own), torch.searchsorted(user_G, own, right=True)])
        begin, end = found.places(bound * codes)
        first_U[own], count_U[own], shift_U[own] = edges + begin, end - begin, beams
        parts.append((found, total_E))
        rows.append(every_R[mine])
        edges, beams = edges + total_E.numel(), beams + user_G.numel()
    children, total_E = _joined(parts)
    return logp_RK, _Candidates(children, total_E, first_U, count_U, torch.cat(rows), shift_U)


def _rows_of(group: BeamGroup, state: _State, alone: bool) -> Tensor | slice:
    return slice(None) if alone else torch.nonzero(torch.isin(state.user_R, group.user_n))[:, 0]


def _joined(parts: Sequence[tuple[Children, Tensor]]) -> tuple[Children, Tensor]:
    if len(parts) == 1:
        return parts[0]
    cells = [found.cells(torch.arange(total.numel(), device=total.device)) for found, total in parts]
    nodes = [found.node_E.long() for found, _ in parts]
    return Children(torch.cat(cells), torch.cat(nodes)), torch.cat([total for _, total in parts])


def _select(state: _State, found: _Candidates, logp_RK: Tensor, keep_U: Tensor, last: bool) -> _State:
    """Keep the best candidates of each user; of equal ones those with the smaller SIDs."""
    user_R, place_R, score_R, cut_U = _best(found.padded(), keep_U)
    edge_R, codes = found.first_U.index_select(0, user_R) + place_R, logp_RK.shape[1]
    cell_R = found.children.cells(edge_R)
    row_R, code_R = torch.div(cell_R, codes, rounding_mode="floor"), cell_R % codes
    parent_R = found.row_R.take(found.shift_U.index_select(0, user_R) + row_R)
    level_score_R = logp_RK.take(parent_R * codes + code_R)
    return _State(
        user_R=user_R,
        # the model's first rows are its users, of whom some may have had no beam to begin with
        parent_R=parent_R if state.codes_Rn.shape[1] else user_R,
        node_R=found.children.node_E.take(edge_R).long(),
        codes_Rn=torch.cat([state.codes_Rn.index_select(0, parent_R), code_R[:, None]], 1),
        score_R=score_R,
        level_score_Rn=torch.cat([state.level_score_Rn.index_select(0, parent_R), level_score_R[:, None]], 1),
        exact_U=state.exact_U if last else state.exact_U & ~cut_U,
    )


def _best(total_UC: Tensor, keep_U: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The places of each user's best scores, users and their places ascending, the scores, and who had more of them."""
    most = int(keep_U.max()) + 1
    best_Uk, place_Uk = total_UC.topk(min(most, total_UC.shape[1]), dim=1)
    if best_Uk.isnan().any():  # counts as the highest; a model that breaks must not take places from others
        return _best(total_UC.nan_to_num(nan=NEVER, neginf=NEVER), keep_U)
    best_Uk = F.pad(best_Uk, (0, most - best_Uk.shape[1]), value=NEVER)
    worst_U, next_U = best_Uk.gather(1, torch.stack([keep_U - 1, keep_U], 1)).unbind(1)
    cut_U = next_U > NEVER
    if (cut_U & (next_U == worst_U)).any():  # which of equal scores top-k returns is not defined
        user_R, place_R = torch.nonzero((total_UC >= worst_U[:, None]) & (total_UC > NEVER), as_tuple=True)
        kept_R = _without_surplus(user_R, total_UC[user_R, place_R], worst_U, keep_U)
        user_R, place_R = user_R[kept_R], place_R[kept_R]
    else:
        columns = place_Uk.shape[1]
        kept_Uk = (torch.arange(columns, device=keep_U.device) < keep_U[:, None]) & (best_Uk[:, :columns] > NEVER)
        place_Uk = place_Uk.masked_fill(~kept_Uk, total_UC.shape[1]).sort(1).values
        user_R, column_R = torch.nonzero(place_Uk < total_UC.shape[1], as_tuple=True)
        place_R = place_Uk.take(user_R * columns + column_R)
    return user_R, place_R, total_UC.take(user_R * total_UC.shape[1] + place_R), cut_U


def _without_surplus(user_R: Tensor, total_R: Tensor, worst_U: Tensor, keep_U: Tensor) -> Tensor:
    """Where candidates tie for a user's last places, the first of them: bool [R]."""
    tied_R = total_R == worst_U[user_R]
    better_U = torch.bincount(user_R[~tied_R], minlength=keep_U.numel())
    before_R = torch.cumsum(tied_R, 0) - tied_R.long()
    first_R = torch.searchsorted(user_R, user_R)
    return ~tied_R | (better_U[user_R] + before_R - before_R[first_R] < keep_U[user_R])


def _answers(state: _State, depth: int) -> list[Beams]:
    """Each user's beams, best first; equal ones stay in the order of their SIDs."""
    by_score = torch.argsort(state.score_R, descending=True, stable=True)
    order = by_score[torch.argsort(state.user_R[by_score], stable=True)]
    counts = torch.bincount(state.user_R, minlength=state.exact_U.numel()).tolist()
    missing = depth - state.codes_Rn.shape[1]  # the search ends early when no beam is left
    codes, levels = (F.pad(found[order], (0, missing)) for found in (state.codes_Rn, state.level_score_Rn))
    parts = zip(
        torch.split(codes, counts),
        torch.split(state.score_R[order], counts),
        torch.split(levels, counts),
        state.exact_U.tolist(),
        strict=True,
    )
    return [Beams(*part) for part in parts]
