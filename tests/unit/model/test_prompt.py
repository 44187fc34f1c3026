"""Prompts keep whole items, the newest ones."""

import pytest

from service.model.prompt import PromptTemplate
from service.model.semantic_ids import SidSpace

SPACE = SidSpace(2, 4, 10)


def test_a_long_history_loses_whole_items_from_its_old_end() -> None:
    prompt = PromptTemplate(SPACE, (1, 2), max_items=2)
    assert prompt.build([(3, 3), (0, 1), (2, 0)]) == [1, 2, 10, 15, 12, 14]
    assert len(prompt.build([(0, 0)] * 9)) == prompt.max_tokens == 6


def test_the_first_tokens_of_its_title_follow_an_item() -> None:
    prompt = PromptTemplate(SPACE, (1, 2), max_items=2, title_tokens=2)
    history, titles = [(3, 3), (0, 1), (2, 0)], [(5,), (), (6, 7, 8)]
    assert prompt.build(history, titles) == [1, 2, 10, 15, 12, 14, 6, 7]
    assert prompt.max_tokens == 2 + 2 * 4


def test_a_history_without_its_titles_is_refused() -> None:
    with pytest.raises(ValueError, match="2 items of a history came with 0 titles"):
        PromptTemplate(SPACE, (1,), 2, title_tokens=1).build([(3, 3), (0, 1)])


def test_an_empty_history_is_the_prefix_alone() -> None:
    assert PromptTemplate(SPACE, (1, 2), 3).build([]) == [1, 2]


def test_a_prompt_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="room"):
        PromptTemplate(SPACE, (1,), 0)
