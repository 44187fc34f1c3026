"""Full beams against scoring every item, seen items out or in, buckets by popularity."""

import numpy as np
import pytest
import torch

from service.model.grounded_lm import GroundedLM
from service.model.semantic_ids import SidSpace
from tests.training.tiny_backbone import WIDTH, backbone
from training.batches import ItemTokens, Window, collate
from training.finetune import next_item_loss
from training.recommender import BeamRecommender

CODES = np.array([[0, 0], [0, 1], [1, 0], [2, 2], [2, 0], [1, 0]])
POPULARITY = np.array([5, 4, 1, 3, 2, 9])


@pytest.fixture(scope="module")
def model() -> GroundedLM:
    made = backbone()
    space = SidSpace(2, 3, len(made.tokenizer))
    torch.manual_seed(2)
    return GroundedLM(made.model, space, (5,), torch.randn(6, WIDTH) * 0.3).requires_grad_(False).eval()


def recommender(model: GroundedLM, beam_width: int = 6) -> BeamRecommender:
    return BeamRecommender(model, CODES, POPULARITY, max_items=4, beam_width=beam_width)


@torch.no_grad()
def brute_force(model: GroundedLM, history: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    scores = {}
    for sid in {tuple(row) for row in CODES.tolist()}:
        codes = torch.from_numpy(CODES[list(history)])[None]
        inputs = torch.cat([model.embed_sequences(codes), model.embed_items(torch.tensor([sid]))], 1)
        hidden = model.hidden(inputs)[0]
        start = 1 + 2 * len(history)
        scores[sid] = sum(
            float(torch.log_softmax(model.level_logits(hidden[start - 1 + level], level), -1)[sid[level]])
            for level in range(2)
        )
    return scores


@pytest.mark.parametrize("history", [(0,), (1, 2), (3, 4, 0, 1)])
def test_the_order_is_that_of_scoring_every_item(model: GroundedLM, history: tuple[int, ...]) -> None:
    scores = brute_force(model, history)
    found = recommender(model).recommend([history, (2,)], exclude_seen=False).items[0]
    assert [scores[tuple(CODES[item])] for item in found] == sorted(
        (scores[tuple(row)] for row in CODES.tolist()), reverse=True
    )


@torch.no_grad()
def test_prompts_with_titles_are_scored_as_training_reads_them(model: GroundedLM) -> None:
    """The loss of a window is minus the beam's score of its last item, titles of all lengths between them."""
    titles = np.array([[1, 2, 3], [4, -1, -1], [-1, -1, -1], [5, 6, -1], [7, -1, -1], [8, 9, 10]])
    items = ItemTokens(CODES, titles)
    ours = BeamRecommender(model, CODES, POPULARITY, max_items=4, beam_width=6, title_NT=titles)
    histories = [(0,), (1, 2), (3, 4, 0, 5)]
    answers = ours.recommend(histories, exclude_seen=False)
    for history, found, scores in zip(histories, answers.items, answers.scores, strict=True):
        windows = [Window((*history, item), len(history)) for item in found]
        alone = [-float(next_item_loss(model, collate([window], items))) for window in windows]
        assert scores == pytest.approx(alone, abs=1e-5)
        whole = next_item_loss(model, collate([*windows, Window((2, 0, 3, 1, 4), 1)], items))
        rest = next_item_loss(model, collate([Window((2, 0, 3, 1, 4), 1)], items))
        assert float(whole) == pytest.approx((-sum(alone) + 4 * float(rest)) / (len(alone) + 4), abs=1e-5)
    plain = recommender(model).recommend(histories, exclude_seen=False)
    assert plain.scores != answers.scores


def test_a_bucket_is_ranked_by_popularity(model: GroundedLM) -> None:
    found = recommender(model).recommend([(0,)], exclude_seen=False).items[0]
    assert found.index(5) + 1 == found.index(2)


def test_seen_items_leave_no_gap(model: GroundedLM) -> None:
    found = recommender(model).recommend([(0, 1, 3)], exclude_seen=True).items[0]
    assert sorted(found) == [2, 4, 5]
    narrow = recommender(model, beam_width=1).recommend([(0, 1, 3)], exclude_seen=True).items[0]
    assert len(narrow) >= 1 and not set(narrow) & {0, 1, 3}


def test_a_seen_item_of_a_bucket_goes_and_its_neighbour_stays(model: GroundedLM) -> None:
    found = recommender(model).recommend([(5,)], exclude_seen=True).items[0]
    assert 2 in found and 5 not in found


def test_without_the_filter_a_repeat_can_be_hit(model: GroundedLM) -> None:
    """RecBole 1823: a blanket filter of seen items lost the repeats among the targets."""
    assert 0 in recommender(model).recommend([(0, 1, 0)], exclude_seen=False).items[0]


def test_users_in_a_batch_do_not_change_each_other(model: GroundedLM) -> None:
    histories = [(0,), (1, 2, 3, 4, 0, 1), (4, 4), (2,)]
    together = recommender(model).recommend(histories, exclude_seen=False, batch_size=4).items
    alone = [recommender(model).recommend([history], exclude_seen=False).items[0] for history in histories]
    assert together == alone


def test_scores_stand_beside_the_items(model: GroundedLM) -> None:
    found = recommender(model).recommend([(1, 2)], exclude_seen=False)
    expected = brute_force(model, (1, 2))
    assert found.scores[0] == pytest.approx([expected[tuple(CODES[item])] for item in found.items[0]], abs=1e-4)


def test_items_that_are_not_offered_are_history_only(model: GroundedLM) -> None:
    offered = np.array([True, True, True, True, False, False])
    narrow = BeamRecommender(model, CODES, POPULARITY, max_items=4, beam_width=6, offered_N=offered)
    found = narrow.recommend([(4, 5, 0)], exclude_seen=False)
    assert sorted(found.items[0]) == [0, 1, 2, 3]
    whole = recommender(model).recommend([(4, 5, 0)], exclude_seen=False)
    assert found.items[0] == [item for item in whole.items[0] if offered[item]]
    assert sorted(narrow.recommend([(4, 5, 0)], exclude_seen=True).items[0]) == [1, 2, 3]
