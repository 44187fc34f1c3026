"""How an item newer than the model borrows probability from its trained neighbours.

A fine-tuned model has learned that codes it never saw never occur. So a new node under a known prefix takes the
mixture of its trained siblings' probabilities, weighted by the softmax of text cosines at a temperature: a new leaf
against the items beside it, a new inner node by the mean embedding of what lies below. Below a new node nothing is
trained: the trie shares uniformly there. This module makes the weights; the trie applies them inside the beam.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix, SidTrie


class SiblingMixer:
    """Knows the trained items' SIDs int [N, L] and their embeddings float32 [N, E]."""

    def __init__(
        self, codes_NL: NDArray[np.integer], embedding_NE: NDArray[np.float32], codes: int, temperature: float
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"the smoothing temperature must be positive, got {temperature}")
        self._trie = SidTrie.build(codes_NL, codes)
        self._temperature = temperature
        leaf_N = self._trie.find(torch.from_numpy(codes_NL.astype(np.int64))).numpy()
        self._leaf_sum = np.zeros((self._trie.num_leaves, embedding_NE.shape[1]), np.float32)
        np.add.at(self._leaf_sum, leaf_N, embedding_NE)

    def mixes(self, new_items: Sequence[tuple[Sid, NDArray[np.float32]]]) -> Mapping[Sid, SiblingMix]:
        """The mixtures of all nodes that exist only because of ``new_items`` (SID, embedding [E])."""
        below: dict[Sid, list[NDArray[np.float32]]] = defaultdict(list)
        for sid, embedding in new_items:
            for length in range(1, len(sid) + 1):
                below[sid[:length]].append(embedding)
        made = ((prefix, self._mix(prefix, np.sum(members, axis=0))) for prefix, members in below.items())
        return {prefix: mix for prefix, mix in made if mix is not None}

    def _mix(self, prefix: Sid, embedding_E: NDArray[np.float32]) -> SiblingMix | None:
        if self._node(prefix) >= 0:
            return None
        parent = self._node(prefix[:-1])
        if parent < 0:
            return None
        siblings = self._trie.children(len(prefix) - 1, parent)
        centroids = np.stack([self._centroid((*prefix[:-1], int(code))) for code in siblings])
        cosine = centroids @ _unit(embedding_E)
        log_weights = torch.log_softmax(torch.from_numpy(cosine) / self._temperature, 0)
        return SiblingMix(tuple(int(code) for code in siblings), tuple(log_weights.tolist()))

    def _node(self, prefix: Sid) -> int:
        return int(self._trie.find(torch.tensor([prefix], dtype=torch.int64).reshape(1, len(prefix)))[0])

    def _centroid(self, prefix: Sid) -> NDArray[np.float32]:
        first, last = self._trie.leaf_range(len(prefix), self._node(prefix))
        return _unit(self._leaf_sum[first:last].sum(0))


def _unit(vector_E: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(vector_E))
    return vector_E / np.float32(max(norm, 1e-12))
