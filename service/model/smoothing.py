"""How an item newer than the model borrows probability from its trained neighbours.

A fine-tuned model has learned that codes it never saw never occur. So a new node under a known prefix takes the
mixture of its trained siblings' probabilities, weighted by the softmax of text cosines at a temperature: a new leaf
against the items beside it, a new inner node by the mean embedding of what lies below. Below a new node nothing is
trained: the trie shares uniformly there. This module makes the weights; the trie applies them inside the beam.
"""

from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix

MAX_SIBLINGS = 64
CACHED_PARENTS = 4096


@dataclass(frozen=True, slots=True)
class _Siblings:
    """The trained children of a node: codes ascending, int64 [S], their mean embeddings, unit, float32 [S, E]."""

    codes_S: NDArray[np.int64]
    centroid_SE: NDArray[np.float32]


class SiblingMixer:
    """Knows the trained items' SIDs int [N, L] and their embeddings float32 [N, E].

    Raises:
        ValueError: the temperature is not positive, or a code is not below ``codes``.
    """

    def __init__(
        self, codes_NL: NDArray[np.integer], embedding_NE: NDArray[np.float32], codes: int, temperature: float
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"the smoothing temperature must be positive, got {temperature}")
        if codes_NL.size and not 0 <= codes_NL.min() <= codes_NL.max() < codes:
            raise ValueError(f"expected SIDs [N, L] of codes below {codes}")
        self._temperature = temperature
        self._seen: OrderedDict[Sid, _Siblings | None] = OrderedDict()
        self._codes_UL, sid_N = np.unique(codes_NL.astype(np.int64), axis=0, return_inverse=True)
        self._sids = [tuple(codes) for codes in self._codes_UL.tolist()]
        self._sum_UE = np.zeros((len(self._sids), embedding_NE.shape[1]), np.float32)
        np.add.at(self._sum_UE, sid_N.reshape(-1), embedding_NE)

    def mixes(self, new_items: Sequence[tuple[Sid, NDArray[np.float32]]]) -> Mapping[Sid, SiblingMix]:
        """The mixtures of all nodes that exist only because of ``new_items`` (SID, embedding [E])."""
        below: dict[Sid, list[NDArray[np.float32]]] = defaultdict(list)
        for sid, embedding in new_items:
            for length in range(1, len(sid) + 1):
                below[sid[:length]].append(embedding)
        made = ((prefix, self.mix(prefix, np.sum(members, axis=0))) for prefix, members in below.items())
        return {prefix: mix for prefix, mix in made if mix is not None}

    def is_trained(self, prefix: Sid) -> bool:
        """Whether a trained item lies under ``prefix`` (at least one code)."""
        siblings = self._siblings(prefix[:-1])
        return siblings is not None and bool((siblings.codes_S == prefix[-1]).any())

    def mix(self, prefix: Sid, embedding_E: NDArray[np.float32]) -> SiblingMix | None:
        """What a new node borrows, by the sum of the embeddings below it; from its `MAX_SIBLINGS` likest siblings.

        None for a node that is trained, or whose parent is new itself.
        """
        siblings = self._siblings(prefix[:-1])
        if siblings is None or (siblings.codes_S == prefix[-1]).any():
            return None
        weight_S = (siblings.centroid_SE @ _unit(embedding_E)).astype(np.float64) / self._temperature
        kept = np.sort(np.argsort(-weight_S, kind="stable")[:MAX_SIBLINGS])
        weight_s = weight_S[kept]
        peak = weight_s.max()
        log_weights = weight_s - (peak + np.log(np.exp(weight_s - peak).sum()))
        return SiblingMix(tuple(siblings.codes_S[kept].tolist()), tuple(log_weights.tolist()))

    def _siblings(self, parent: Sid) -> _Siblings | None:
        if parent not in self._seen:
            self._seen[parent] = self._look_up(parent)
            if len(self._seen) > CACHED_PARENTS:
                self._seen.popitem(last=False)
        return self._seen[parent]

    def _look_up(self, parent: Sid) -> _Siblings | None:
        """SIDs are sorted, so those below a node are neighbours, and its children begin where their code changes."""
        first = bisect_left(self._sids, parent)
        last = bisect_left(self._sids, (*parent[:-1], parent[-1] + 1)) if parent else len(self._sids)
        if first == last:
            return None
        code_U = self._codes_UL[first:last, len(parent)]
        start_S = np.flatnonzero(np.diff(code_U, prepend=-1))
        sum_SE = np.add.reduceat(self._sum_UE[first:last], start_S, axis=0)
        return _Siblings(code_U[start_S], sum_SE / np.maximum(np.linalg.norm(sum_SE, axis=1, keepdims=True), 1e-12))


def _unit(vector_E: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(vector_E))
    return vector_E / np.float32(max(norm, 1e-12))
