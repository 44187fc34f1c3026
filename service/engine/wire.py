"""What crosses into the engine's processes, as plain lists, numbers and bytes (no pickle).

One place encodes and decodes requests, answers, catalogue deltas and token rows; both ends import it, so they cannot
drift apart. An answer travels as one float32 tensor because a pooling output is a tensor: the first row says whether it
is exact, how many seconds it was decoded and how many of its prompt's tokens were cached; each other row is L codes,
the score, L level scores. A tensor of a single number says why there is none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineCost, LegalSlots, TokenRow
from service.errors import DeadlineError, EngineError, UnknownVersionError
from service.model.beam import Beams
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix

_UNKNOWN_VERSION, _TOO_LATE = 1.0, 2.0


def encode_request(request: BeamRequest) -> dict[str, Any]:
    """Everything of a request but its prompt, which vLLM carries itself; SIDs as int32 bytes, because vLLM copies."""
    legal = request.legal
    return {
        "width": request.beam_width,
        "version": request.catalog_version,
        "excluded": [len(request.excluded), np.array(request.excluded, np.int32).tobytes()],
        "legal": None if legal is None else [legal.key, legal.bits, legal.count],
        "num_results": request.num_results,
        "deadline": request.deadline,
    }


def decode_request(plain: Mapping[str, Any]) -> BeamRequest:
    """Back to the request, without its prompt."""
    count, codes = plain["excluded"]
    excluded = np.frombuffer(codes, np.int32).reshape(count, -1).tolist() if count else ()
    legal = None if plain["legal"] is None else LegalSlots(*plain["legal"])
    return BeamRequest(
        (),
        plain["width"],
        plain["version"],
        tuple(tuple(sid) for sid in excluded),
        legal,
        plain["num_results"],
        plain["deadline"],
    )


def encode_beams(beams: Beams, decode_seconds: float = 0.0) -> Tensor:
    """One user's beams as float32 [1 + n, 2 L + 1]; codes below 2^24 are exact."""
    rows = torch.cat([beams.codes_nL.float(), beams.score_n[:, None], beams.level_score_nL], 1).cpu()
    first = torch.zeros(1, rows.shape[1])  # three columns at least
    first[0, 0], first[0, 1] = float(beams.exact), decode_seconds
    return torch.cat([first, rows])


def with_cached_tokens(encoded: Tensor, count: int) -> Tensor:
    """An encoded answer that says how many of its prompt's tokens came from the prefix cache."""
    if encoded.numel() == 1:
        return encoded
    told = encoded.clone()
    told[0, 2] = count
    return told


def unknown_version() -> Tensor:
    """What stands in place of an answer when the worker does not hold the catalogue version."""
    return torch.tensor([_UNKNOWN_VERSION])


def too_late() -> Tensor:
    """What stands in place of an answer when the deadline passed before it was computed."""
    return torch.tensor([_TOO_LATE])


def tensor_bytes(encoded: Tensor) -> bytes:
    """An encoded answer as the bytes of its float32 numbers."""
    return encoded.float().contiguous().numpy().tobytes()


def decode_answer(
    encoded: bytes, levels: int, version: int, *, wait_seconds: float = 0.0, engine_seconds: float = 0.0
) -> BeamAnswer:
    """The answer of a worker to a request that named ``version``.

    ``wait_seconds`` passed before the engine took it in, ``engine_seconds`` until it gave the answer out.

    Raises:
        UnknownVersionError: the worker did not hold the catalogue version.
        DeadlineError: the deadline passed before the answer existed.
        EngineError: the bytes are no answer.
    """
    numbers = np.frombuffer(encoded, np.float32)
    if numbers.size == 1:
        raise _reason(float(numbers[0]), version)
    first, *rows = numbers.reshape(-1, 2 * levels + 1).tolist()
    return BeamAnswer(
        tuple(tuple(map(int, row[:levels])) for row in rows),
        tuple(row[levels] for row in rows),
        tuple(tuple(row[levels + 1 :]) for row in rows),
        exact=bool(first[0]),
        cost=EngineCost(wait_seconds, max(0.0, engine_seconds - first[1]), first[1], int(first[2])),
    )


def _reason(number: float, version: int) -> Exception:
    if number == _UNKNOWN_VERSION:
        return UnknownVersionError(f"catalogue version {version} is no longer held")
    if number == _TOO_LATE:
        return DeadlineError("the deadline passed before the engine could answer")
    return EngineError(f"the engine sent no answer but the number {number}")


def encode_delta(delta: CatalogDelta) -> dict[str, Any]:
    """A delta as plain data."""
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
    """Embedding rows as plain data."""
    return [[row.level, row.code, list(row.input_D), list(row.output_D)] for row in rows]


def decode_tokens(plain: Sequence[Sequence[Any]]) -> list[TokenRow]:
    """The inverse of `encode_tokens`."""
    return [TokenRow(int(level), int(code), tuple(given), tuple(said)) for level, code, given, said in plain]
