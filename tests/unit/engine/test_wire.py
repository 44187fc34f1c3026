"""What crosses into the worker comes out as it went in."""

import json

import pytest
import torch

from service.engine.base import BeamRequest, CatalogDelta
from service.engine.wire import (
    decode_answer,
    decode_delta,
    decode_request,
    encode_beams,
    encode_delta,
    encode_request,
    unknown_version,
)
from service.errors import UnknownVersionError
from service.model.beam import Beams
from service.model.trie import SiblingMix


def test_requests_round_trip_as_plain_json() -> None:
    plain = json.loads(json.dumps(encode_request(BeamRequest([1, 2], 7, 3, [(1, 2, 3), (4, 5, 6)]))))
    width, version, excluded = decode_request(plain, levels=3)
    assert (width, version, excluded.tolist()) == (7, 3, [[1, 2, 3], [4, 5, 6]])


def test_answers_round_trip() -> None:
    beams = Beams(torch.tensor([[8191, 0], [3, 4]]), torch.tensor([-1.5, -2.0]), torch.tensor([[-1.0, -0.5], [-1, -1]]))
    answer = decode_answer(encode_beams(beams), levels=2)
    assert answer.sids == ((8191, 0), (3, 4))
    assert answer.scores == (-1.5, -2.0)
    assert answer.level_scores == ((-1.0, -0.5), (-1.0, -1.0))


def test_an_unknown_version_is_an_error_on_this_side() -> None:
    with pytest.raises(UnknownVersionError, match="catalogue version 12"):
        decode_answer(unknown_version(12), levels=2)


def test_deltas_round_trip_as_plain_json() -> None:
    delta = CatalogDelta(2, ((1, 2),), ((0, 0),), {(1,): SiblingMix((0, 3), (-0.5, -1.0))})
    assert decode_delta(json.loads(json.dumps(encode_delta(delta)))) == delta
