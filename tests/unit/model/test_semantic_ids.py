"""Tokens and codes name each other one to one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.model.semantic_ids import SidSpace


@given(levels=st.integers(1, 8), codes=st.integers(2, 64), first=st.integers(0, 10**6), data=st.data())
def test_token_ids_round_trip(levels: int, codes: int, first: int, data: st.DataObject) -> None:
    space = SidSpace(levels, codes, first)
    sid = tuple(data.draw(st.tuples(*[st.integers(0, codes - 1)] * levels)))
    level, code = space.level_and_code(torch.tensor(space.token_ids(sid)))
    assert level.tolist() == list(range(levels))
    assert tuple(code.tolist()) == sid
    assert space.rows(torch.tensor([sid]))[0].tolist() == [token - first for token in space.token_ids(sid)]


def test_text_tokens_have_no_level() -> None:
    level, code = SidSpace(3, 8, 100).level_and_code(torch.tensor([99, 124, -1]))
    assert level.tolist() == [-1, -1, -1]
    assert code.tolist() == [0, 0, 0]


def test_token_strings_follow_the_rows() -> None:
    strings = SidSpace(2, 3, 0).token_strings()
    assert strings == ["<a_0>", "<a_1>", "<a_2>", "<b_0>", "<b_1>", "<b_2>"]


@pytest.mark.parametrize(("levels", "codes", "first"), [(0, 8, 0), (9, 8, 0), (3, 1, 0), (3, 8193, 0), (3, 8, -1)])
def test_impossible_sizes_are_refused(levels: int, codes: int, first: int) -> None:
    with pytest.raises(ValueError, match="must"):
        SidSpace(levels, codes, first)


@pytest.mark.parametrize("sid", [(0, 1), (0, 1, 8), (0, -1, 2)])
def test_a_foreign_sid_is_refused(sid: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not a SID"):
        SidSpace(3, 8, 0).check(sid)
