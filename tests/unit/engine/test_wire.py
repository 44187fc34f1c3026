"""What crosses into the worker comes out as it went in."""

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, LegalSlots, TokenRow
from service.engine.wire import (
    decode_answer,
    decode_delta,
    decode_request,
    decode_tokens,
    encode_beams,
    encode_delta,
    encode_request,
    encode_tokens,
    tensor_bytes,
    too_late,
    unknown_version,
)
from service.errors import DeadlineError, EngineError, UnknownVersionError
from service.model.beam import Beams
from service.model.trie import SiblingMix


def sent(plain: Any) -> Any:
    """Plain data after its way through a socket."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(plain))


@pytest.mark.parametrize("excluded", [(), ((1, 2, 3), (4, 5, 8191))])
def test_requests_round_trip(excluded: tuple[tuple[int, ...], ...]) -> None:
    legal = LegalSlots.of("rule", np.array([True, False, True]))
    request = BeamRequest([1, 2], 7, 3, excluded, legal, num_results=5, deadline=12.5)
    assert decode_request(sent(encode_request(request))) == dataclasses.replace(request, prompt_ids=())


@pytest.mark.parametrize("exact", [False, True])
def test_answers_round_trip(exact: bool) -> None:
    codes, levels = torch.tensor([[8191, 0], [3, 4]]), torch.tensor([[-1.0, -0.5], [-1, -1]])
    beams = Beams(codes, torch.tensor([-1.5, -2.0]), levels, exact)
    answer = decode_answer(tensor_bytes(encode_beams(beams)), levels=2, version=12)
    assert answer.exact is exact
    assert answer.sids == ((8191, 0), (3, 4))
    assert answer.scores == (-1.5, -2.0)
    assert answer.level_scores == ((-1.0, -0.5), (-1.0, -1.0))


def test_an_empty_answer_round_trips() -> None:
    nothing = Beams(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0), torch.zeros(0, 2), exact=True)
    assert decode_answer(tensor_bytes(encode_beams(nothing)), levels=2, version=12) == BeamAnswer(
        (), (), (), exact=True
    )


def test_why_there_is_no_answer_is_an_error_on_this_side() -> None:
    for encoded, error in [
        (unknown_version(), UnknownVersionError),
        (too_late(), DeadlineError),
        (torch.tensor([7.0]), EngineError),
    ]:
        with pytest.raises(error, match="version 12|deadline passed|number 7"):
            decode_answer(tensor_bytes(encoded), levels=2, version=12)


def test_deltas_round_trip() -> None:
    delta = CatalogDelta(4, 2, ((1, 2),), ((0, 0),), {(1,): SiblingMix((0, 3), (-0.5, -1.0))})
    assert decode_delta(sent(encode_delta(delta))) == delta


def test_token_rows_round_trip() -> None:
    rows = [TokenRow(1, 7, (0.5, -0.25), (0.5, 1.0))]
    assert decode_tokens(sent(encode_tokens(rows))) == rows
