"""How an item newer than the model borrows probability from its trained neighbours.

A fine-tuned model has learned that codes it never saw never occur. So a new node under a known prefix takes the
mixture of its trained siblings' probabilities, weighted by the softmax of text cosines at a temperature: a new leaf
against the items beside it, a new inner node by the mean embedding of what lies below. Below a new node nothing is
trained: the trie shares uniformly there. This module makes the weights; the trie applies them inside the beam.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix, SidTrie

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
        ValueError: the temperature is not positive.
    """

    def __init__(
        self, codes_NL: NDArray[np.integer], embedding_NE: NDArray[np.float32], codes: int, temperature: float
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"the smoothing temperature must be positive, got {temperature}")
        self._trie = SidTrie.build(codes_NL, codes)
        self._temperature = temperature
        self._seen: OrderedDict[Sid, _Siblings | None] = OrderedDict()
        leaf_N = self._trie.find(torch.from_numpy(codes_NL.astype(np.int64))).numpy()
        self._leaf_sum = np.zeros((self._trie.num_leaves, embedding_NE.shape[1]), np.float32)
        np.add.at(self._leaf_sum, leaf_N, embedding_NE)

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
        level, node = len(parent), self._node(parent)
        if node < 0:
            return None
        codes_S = self._trie.children(level, node)
        ranges = [self._trie.leaf_range(level + 1, self._node((*parent, int(code)))) for code in codes_S]
        return _Siblings(codes_S, np.stack([_unit(self._leaf_sum[first:last].sum(0)) for first, last in ranges]))

    def _node(self, prefix: Sid) -> int:
        return int(self._trie.find(torch.tensor([prefix], dtype=torch.int64).reshape(1, len(prefix)))[0])


def _unit(vector_E: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(vector_E))
    return vector_E / np.float32(max(norm, 1e-12))
