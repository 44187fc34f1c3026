"""What the benchmark sends to the bare engine are the service's own prompts in another order."""

from loadtest.http_overhead import items_of
from service.model.prompt import PromptTemplate
from service.model.semantic_ids import SidSpace

SPACE = SidSpace(levels=2, codes=4, first_token_id=10)


def test_a_prompt_falls_into_items_with_their_titles() -> None:
    titled = PromptTemplate(SPACE, (1, 2), max_items=5, title_tokens=2)
    prompt = titled.build([(0, 1), (3, 2), (1, 1)], [(7,), (), (8, 9)])
    assert items_of(prompt[2:], SPACE) == [[10, 15, 7], [13, 16], [11, 15, 8, 9]]


def test_a_prompt_without_titles_falls_into_sids() -> None:
    prompt = PromptTemplate(SPACE, (1,), max_items=5).build([(0, 1), (3, 2)])
    assert items_of(prompt[1:], SPACE) == [[10, 15], [13, 16]]
