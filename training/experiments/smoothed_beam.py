"""The beam over trained and posted items, new nodes borrowing from trained siblings, as the service's engines do it.

Experiments give the posted items SIDs of their own choosing. It knows no policies and measures nothing.

Shapes: N items, L levels, E embedding width.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from service.model.beam import BeamQuery, beam_search
from service.model.checkpoint import Checkpoint
from service.model.grounded_lm import GroundedLM
from service.model.live_trie import LiveTrie
from service.model.smoothing import SiblingMixer
from service.model.torch_beam import TorchBeamModel
from training.cold_items import ColdItems
from training.data import Example
from training.progress import Reporter
from training.recommender import Recommended

BATCH = 32


@dataclass(frozen=True, slots=True)
class SmoothedBeam:
    """Recommends from ``items``, whose new ones have the SIDs to try; ``boost`` multiplies what new nodes borrow.

    ``owned`` are new items whose nodes borrow nothing: the model's own scores stand, as for trained items.
    """

    checkpoint: Checkpoint
    model: GroundedLM
    items: ColdItems
    boost: float
    reporter: Reporter
    owned: frozenset[int] = field(default=frozenset())

    @torch.no_grad()
    def recommend(self, examples: Sequence[Example], label: str) -> Recommended:
        """Ranked items per user with their scores; seen items are left out, users batched by length."""
        trie, buckets = self._trie(), self._buckets()
        items: list[list[int]] = [[] for _ in examples]
        scores: list[list[float]] = [[] for _ in examples]
        order = sorted(range(len(examples)), key=lambda user: len(examples[user].history))
        with self.reporter.task(label) as progress:
            for start in range(0, len(order), BATCH):
                users = order[start : start + BATCH]
                prompts = [self._prompt(examples[user]) for user in users]
                queries = [self._query(trie, buckets, examples[user]) for user in users]
                found = beam_search(TorchBeamModel(self.model, prompts), queries, log_boost=math.log(self.boost))
                for user, beams in zip(users, found, strict=True):
                    seen = set(examples[user].history)
                    for sid, score in zip(beams.codes_nL.tolist(), beams.score_n.tolist(), strict=True):
                        left = [item for item in buckets[tuple(sid)] if item not in seen]
                        items[user] += left
                        scores[user] += [score] * len(left)
                progress(start + len(users), len(order))
        return Recommended(items, scores, 0)

    def _trie(self) -> LiveTrie:
        codes_NL, embedding_NE, space = self.items.codes_NL, self.items.embedding_NE, self.checkpoint.space
        trained_N = ~self.items.is_new_N
        mixer = SiblingMixer(
            codes_NL[trained_N], embedding_NE[trained_N], space.codes, self.checkpoint.manifest.smoothing.temperature
        )
        lent = [item for item in self.items.new_M.tolist() if item not in self.owned]
        new = [(tuple(codes_NL[item].tolist()), embedding_NE[item]) for item in lent]
        scored_N = trained_N | np.isin(np.arange(len(codes_NL)), list(self.owned))
        trie = LiveTrie.build(codes_NL[scored_N], space.codes)
        return trie.advance([sid for sid, _ in new], (), mixer.mixes(new))

    def _buckets(self) -> dict[tuple[int, ...], list[int]]:
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        order_N = np.lexsort((-self.items.popularity_N, self.items.is_new_N))
        for item in order_N.tolist():
            found[tuple(self.items.codes_NL[item].tolist())].append(item)
        return found

    def _prompt(self, example: Example) -> list[int]:
        sids = [tuple(self.items.codes_NL[item].tolist()) for item in example.history]
        rows = self.items.title_NT[list(example.history)].tolist()
        return list(self.checkpoint.prompt.build(sids, [[token for token in row if token >= 0] for row in rows]))

    def _query(self, trie: LiveTrie, buckets: dict[tuple[int, ...], list[int]], example: Example) -> BeamQuery:
        seen = set(example.history)
        sids = {tuple(self.items.codes_NL[item].tolist()) for item in seen}
        spent = sorted(sid for sid in sids if set(buckets[sid]) <= seen)
        excluded = torch.tensor(spent, dtype=torch.int64).reshape(-1, self.checkpoint.space.levels)
        return BeamQuery(trie, self.checkpoint.manifest.serving.beam_width, excluded)
