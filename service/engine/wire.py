"""What crosses into vLLM's worker processes, as plain lists, integers and floats (no pickle).

One place encodes and decodes requests, answers, catalogue deltas and token rows; both ends import it, so they cannot
drift apart. An answer travels as one float32 tensor because a pooling output is a tensor: the first row says whether it
is exact, each other row is L codes, the score, L level scores.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, LegalSlots, TokenRow
from service.errors import UnknownVersionError
from service.model.beam import Beams
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix


def encode_request(request: BeamRequest) -> dict[str, Any]:
    """Everything of a request but its prompt, which vLLM carries itself."""
    legal = request.legal
    return {
        "width": request.beam_width,
        "version": request.catalog_version,
        "excluded": [list(sid) for sid in request.excluded],
        "legal": None if legal is None else [legal.key, b64encode(legal.bits).decode("ascii"), legal.count],
        "num_results": request.num_results,
        "deadline": request.deadline,
    }


def decode_request(plain: Mapping[str, Any]) -> BeamRequest:
    """Back to the request, without its prompt."""
    excluded = tuple(tuple(sid) for sid in plain["excluded"])
    legal = None
    if plain["legal"] is not None:
        key, bits, count = plain["legal"]
        legal = LegalSlots(key, b64decode(bits), count)
    return BeamRequest((), plain["width"], plain["version"], excluded, legal, plain["num_results"], plain["deadline"])


def encode_beams(beams: Beams) -> Tensor:
    """One user's beams as float32 [1 + n, 2 L + 1]; codes below 2^24 are exact."""
    rows = torch.cat([beams.codes_nL.float(), beams.score_n[:, None], beams.level_score_nL], 1)
    return torch.cat([torch.full((1, rows.shape[1]), float(beams.exact)), rows])


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
    rows = encoded[1:]
    return BeamAnswer(
        tuple(tuple(sid) for sid in rows[:, :levels].long().tolist()),
        tuple(rows[:, levels].tolist()),
        tuple(tuple(scores) for scores in rows[:, levels + 1 :].tolist()),
        exact=bool(encoded[0, 0]),
    )


def encode_delta(delta: CatalogDelta) -> dict[str, Any]:
    """A delta as JSON-like data."""
    mixes = [[list(prefix), list(mix.codes), list(mix.log_weights)] for prefix, mix in delta.smoothing.items()]
    return {
        "version": delta.version,
        "previous": delta.previous,
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
    return CatalogDelta(int(plain["version"]), int(plain["previous"]), added, removed, smoothing)


def encode_tokens(rows: Sequence[TokenRow]) -> list[list[Any]]:
    """Embedding rows as JSON-like data."""
    return [[row.level, row.code, list(row.input_D), list(row.output_D)] for row in rows]


def decode_tokens(plain: Sequence[Sequence[Any]]) -> list[TokenRow]:
    """The inverse of `encode_tokens`."""
    return [TokenRow(int(level), int(code), tuple(given), tuple(said)) for level, code, given, said in plain]
