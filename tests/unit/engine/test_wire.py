"""What crosses into the worker comes out as it went in."""

import dataclasses
import json

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
    unknown_version,
)
from service.errors import UnknownVersionError
from service.model.beam import Beams
from service.model.trie import SiblingMix


def test_requests_round_trip_as_plain_json() -> None:
    legal = LegalSlots.of("rule", np.array([True, False, True]))
    request = BeamRequest([1, 2], 7, 3, ((1, 2, 3), (4, 5, 6)), legal, num_results=5, deadline=12.5)
    plain = json.loads(json.dumps(encode_request(request)))
    assert decode_request(plain) == dataclasses.replace(request, prompt_ids=())


@pytest.mark.parametrize("exact", [False, True])
def test_answers_round_trip(exact: bool) -> None:
    codes, levels = torch.tensor([[8191, 0], [3, 4]]), torch.tensor([[-1.0, -0.5], [-1, -1]])
    answer = decode_answer(encode_beams(Beams(codes, torch.tensor([-1.5, -2.0]), levels, exact)), levels=2)
    assert answer.exact is exact
    assert answer.sids == ((8191, 0), (3, 4))
    assert answer.scores == (-1.5, -2.0)
    assert answer.level_scores == ((-1.0, -0.5), (-1.0, -1.0))


def test_an_empty_answer_round_trips() -> None:
    nothing = Beams(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0), torch.zeros(0, 2), exact=True)
    assert decode_answer(encode_beams(nothing), levels=2) == BeamAnswer((), (), (), exact=True)


def test_an_unknown_version_is_an_error_on_this_side() -> None:
    with pytest.raises(UnknownVersionError, match="catalogue version 12"):
        decode_answer(unknown_version(12), levels=2)


def test_deltas_round_trip_as_plain_json() -> None:
    delta = CatalogDelta(4, 2, ((1, 2),), ((0, 0),), {(1,): SiblingMix((0, 3), (-0.5, -1.0))})
    assert decode_delta(json.loads(json.dumps(encode_delta(delta)))) == delta


def test_token_rows_round_trip_as_plain_json() -> None:
    rows = [TokenRow(1, 7, (0.5, -0.25), (0.5, 1.0))]
    assert decode_tokens(json.loads(json.dumps(encode_tokens(rows)))) == rows
