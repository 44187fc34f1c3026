"""What crosses into vLLM's worker processes, as plain lists, integers and floats (no pickle).

One place encodes and decodes requests, answers and catalogue deltas; both ends import it, so they cannot drift apart.
An answer travels as one float32 tensor because a pooling output is a tensor: row = L codes, the score, L level scores.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta
from service.errors import UnknownVersionError
from service.model.beam import Beams
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix


def encode_request(request: BeamRequest) -> dict[str, Any]:
    """Everything of a request but its prompt, which vLLM carries itself."""
    excluded = [code for sid in request.excluded for code in sid]
    return {"width": request.beam_width, "version": request.catalog_version, "excluded": excluded}


def decode_request(plain: Mapping[str, Any], levels: int) -> tuple[int, int, Tensor]:
    """Back to ``(beam width, catalogue version, excluded SIDs int64 [n, L])``."""
    excluded = torch.tensor(plain["excluded"], dtype=torch.int64).reshape(-1, levels)
    return int(plain["width"]), int(plain["version"]), excluded


def encode_beams(beams: Beams) -> Tensor:
    """One user's beams as float32 [n, 2 L + 1]; codes below 2^24 are exact."""
    return torch.cat([beams.codes_nL.float(), beams.score_n[:, None], beams.level_score_nL], 1)


def unknown_version(version: int) -> Tensor:
    """What stands in place of an answer when the worker does not hold the version."""
    return torch.tensor([float(version)])


def decode_answer(encoded: Tensor, levels: int) -> BeamAnswer:
    """The answer of a worker.

    Raises:
        UnknownVersionError: the worker did not hold the catalogue version.
    """
    if encoded.ndim == 1:
        raise UnknownVersionError(f"catalogue version {int(encoded[0])} is no longer held")
    codes = encoded[:, :levels].long().tolist()
    return BeamAnswer(
        tuple(tuple(sid) for sid in codes),
        tuple(encoded[:, levels].tolist()),
        tuple(tuple(scores) for scores in encoded[:, levels + 1 :].tolist()),
    )


def encode_delta(delta: CatalogDelta) -> dict[str, Any]:
    """A delta as JSON-like data."""
    mixes = [[list(prefix), list(mix.codes), list(mix.log_weights)] for prefix, mix in delta.smoothing.items()]
    return {
        "version": delta.version,
        "added": [list(sid) for sid in delta.added],
        "removed": [list(sid) for sid in delta.removed],
        "smoothing": mixes,
    }


def decode_delta(plain: Mapping[str, Any]) -> CatalogDelta:
    """The inverse of `encode_delta`."""
    smoothing: dict[Sid, SiblingMix] = {
        tuple(prefix): SiblingMix(tuple(codes), tuple(weights)) for prefix, codes, weights in plain["smoothing"]
    }
    added, removed = (tuple(tuple(sid) for sid in plain[name]) for name in ("added", "removed"))
    return CatalogDelta(int(plain["version"]), added, removed, smoothing)
