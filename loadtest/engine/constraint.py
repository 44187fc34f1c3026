"""What the catalogue's constraint costs, without any language model.

The service's own beam search runs on log-probabilities made beforehand, beside an unconstrained beam over the same
numbers (a top-k over all codes). The difference is the constraint; the model's part of a step is nowhere in it.

Shapes: U users, W beams, R = U * W rows, L levels, K codes.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loadtest.engine.contender import Host, HostSpec
from loadtest.synthetic_checkpoint import crowded_codes
from service.model.beam import BeamQuery, beam_search
from service.model.checkpoint import open_checkpoint
from service.model.live_trie import LiveTrie
from service.model.semantic_ids import SidSpace


def open_host(spec: HostSpec) -> Host:
    """The checkpoint gives levels and codes only."""
    torch.set_num_threads(spec.threads)
    space = open_checkpoint(Path(spec.checkpoint), verify=False).space
    return Host({}, {"cost": lambda **arguments: cost(space, **arguments)})


class MadeUpModel:
    """A `BeamModel` whose answers cost nothing: float32 [U * W, K] log-probabilities, sliced."""

    def __init__(self, logp_RK: Tensor, users: int) -> None:
        self._logp_RK = logp_RK
        self._users = users

    def first(self) -> Tensor:
        """Float32 [U, K]."""
        return self._logp_RK[: self._users]

    def next(self, codes_Rn: Tensor, user_R: Tensor, parent_R: Tensor) -> Tensor:
        """Float32 [R, K]."""
        return self._logp_RK[: codes_Rn.shape[0]]


def cost(space: SidSpace, items: int, users: int, beam: int, rounds: int) -> dict[str, Any]:
    """CPU milliseconds of a whole beam of all levels, with the constraint and without, one pair a round."""
    codes_NL = crowded_codes(space, items, seed=1)
    began = time.process_time()
    trie = LiveTrie.build(codes_NL, space.codes)
    build_s = time.process_time() - began
    logp_RK = torch.log_softmax(2 * torch.randn(users * beam, space.codes), -1)
    model = MadeUpModel(logp_RK, users)
    queries = [BeamQuery(trie, beam, torch.empty(0, space.levels, dtype=torch.int64)) for _ in range(users)]
    constrained = [lambda: beam_search(model, queries), lambda: unconstrained_beam(logp_RK, users, beam, space.levels)]
    spent: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for kind, run in enumerate(constrained):
            spent[kind].append(_cpu_ms(run))
    return {
        "beam_ms": spent[0][1:],
        "unconstrained_ms": spent[1][1:],
        "build_s": build_s,
        "bytes_per_item": trie.num_bytes / items,
    }


def unconstrained_beam(logp_RK: Tensor, users: int, beam: int, levels: int) -> Tensor:
    """Top-k over all codes at every level; the codes int64 [U, W, L]."""
    codes_K = logp_RK.shape[1]
    score_UW, codes_UWn = torch.zeros(users, 1), torch.zeros(users, 1, 0, dtype=torch.int64)
    for _ in range(levels):
        width = score_UW.shape[1]
        total_UC = (score_UW[..., None] + logp_RK[: users * width].view(users, width, codes_K)).flatten(1)
        score_UW, place_UW = total_UC.topk(min(beam, total_UC.shape[1]))
        parent_UW = place_UW // codes_K
        kept = codes_UWn.gather(1, parent_UW[..., None].expand(-1, -1, codes_UWn.shape[2]))
        codes_UWn = torch.cat([kept, (place_UW % codes_K)[..., None]], -1)
    return codes_UWn


def _cpu_ms(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return (time.process_time() - began) * 1e3
