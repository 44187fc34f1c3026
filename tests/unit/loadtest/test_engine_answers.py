"""A benchmark on wrong answers is worthless: what is checked, and that the witnesses themselves are right."""

import numpy as np
import pytest
import torch

from loadtest.engine import torch_host
from loadtest.engine.contender import Answer, Batch, Host
from loadtest.engine.prompts import history_prompts, legal_mask
from loadtest.engine.sections import WrongAnswerError, check_answers, disagreement, unused_sids
from loadtest.engine.sorted_sids import SortedSids
from service.model.checkpoint import Checkpoint
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from service.model.semantic_ids import Sid, SidSpace
from tests.tiny_checkpoint import Shape, build
from tests.unit.loadtest.engine_fakes import spec

SPACE = SidSpace(2, 4, 10)
SIDS = SortedSids(np.array([[0, 1], [0, 3], [2, 2], [3, 0], [0, 1]]), SPACE)
BATCH = Batch([[1]], 2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("engine") / "tiny", Shape(levels=3, codes=8, items=60))


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> GroundedLM:
    return load_grounded_lm(checkpoint, torch.float32)


@pytest.fixture(scope="module")
def host(checkpoint: Checkpoint) -> Host:
    return torch_host.open_host(spec(kind="torch", checkpoint=str(checkpoint.folder)))


def batch(checkpoint: Checkpoint, beam: int = 6) -> Batch:
    codes_NL = checkpoint.catalog_tensors().codes_NL
    return Batch(history_prompts(checkpoint.space, codes_NL, 3, 20, np.random.default_rng(3)), beam)


@torch.no_grad()
def brute_force(model: GroundedLM, prompt: list[int], sids: list[Sid]) -> dict[Sid, float]:
    """The log-probability of every SID after a prompt, each in a forward pass of its own."""
    scores = {}
    for sid in sids:
        token_1T = torch.tensor([[*prompt, *model.space.token_ids(sid)]])
        hidden = model.hidden(model.embed_tokens(token_1T))[0]
        places = range(len(prompt) - 1, len(prompt) - 1 + len(sid))
        logits = [model.level_logits(hidden[place], level) for level, place in enumerate(places)]
        scores[sid] = sum(float(one.log_softmax(-1)[code]) for one, code in zip(logits, sid, strict=True))
    return scores


def test_the_witness_finds_the_best_sids_that_exist(checkpoint: Checkpoint, model: GroundedLM, host: Host) -> None:
    sids = [tuple(row) for row in checkpoint.catalog_tensors().codes_NL.tolist()]
    wanted = batch(checkpoint, beam=60)  # as wide as the catalogue: no beam error
    for prompt, answer in zip(wanted.prompts, host.contenders["torch_loop"].run(wanted), strict=True):
        scores = brute_force(model, list(prompt), sids)
        best = sorted(scores, key=lambda sid: -scores[sid])
        assert list(answer.sids) == best
        assert np.allclose(answer.scores, [scores[sid] for sid in best], atol=1e-4)


def test_hugging_face_is_kept_to_sids_that_exist(checkpoint: Checkpoint, host: Host) -> None:
    wanted = batch(checkpoint)
    answers = host.contenders["hf_generate"].run(wanted)
    sids = SortedSids(checkpoint.catalog_tensors().codes_NL, checkpoint.space)
    assert check_answers("hf_generate", answers, wanted, sids) == 0
    assert [len(answer.sids) for answer in answers] == [6, 6, 6]


@pytest.mark.parametrize("name", ["torch_loop", "hf_generate"])
def test_rivals_refuse_what_they_cannot_do(checkpoint: Checkpoint, host: Host, name: str) -> None:
    prompts = batch(checkpoint).prompts
    with pytest.raises(ValueError, match="no filters"):
        host.contenders[name].prepare(Batch(prompts, 4, legal_share=0.5))
    with pytest.raises(ValueError, match="one length"):
        host.contenders[name].prepare(Batch([prompts[0], prompts[1][:-1]], 4))


def test_torch_contenders_have_no_compiled_mode(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="eager only"):
        torch_host.open_host(spec(kind="torch", checkpoint=str(checkpoint.folder), compiled=True))


def test_sorted_sids_know_children_slots_and_what_does_not_exist() -> None:
    assert len(SIDS) == 4
    assert SIDS.children(()).tolist() == [0, 2, 3]
    assert SIDS.children((0,)).tolist() == [1, 3]
    assert SIDS.children((1,)).tolist() == []
    assert SIDS.slots([(0, 1), (3, 0), (3, 1), (-1, 2)]).tolist() == [0, 3, -1, -1]
    assert SIDS.illegal_share([(0, 1), (1, 1)]) == 0.5
    assert [SIDS.sid(SIDS.number(sid)) for sid in [(0, 3), (2, 2)]] == [(0, 3), (2, 2)]


def test_children_of_many_prefixes_keep_their_rows() -> None:
    row_E, prefix_E = SIDS.expand(1, np.array([3, 1, 0]))
    assert row_E.tolist() == [0, 2, 2]
    assert (prefix_E % 4).tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([Answer(((1, 1), (0, 1)), (0.0, -1.0))], "illegal"),
        ([Answer(((0, 1), (0, 1)), (0.0, -1.0))], "different"),
        ([Answer(((0, 1),), (0.0,))], "2 due"),
        ([Answer(((0, 1), (2, 2)), (-1.0, 0.0))], "scores rise"),
        ([], "0 answers to 1"),
    ],
)
def test_a_wrong_answer_ends_the_run(answers: list[Answer], why: str) -> None:
    with pytest.raises(WrongAnswerError, match=why):
        check_answers("ours", answers, BATCH, SIDS)


def test_an_unconstrained_rivals_illegal_share_is_told_not_refused() -> None:
    assert check_answers("vllm_beam", [Answer(((1, 1), (0, 1)), (0.0, -1.0))], BATCH, SIDS) == 0.5


def test_rankings_disagree_by_their_scores_not_by_the_order_of_ties() -> None:
    one = Answer(((0, 1), (0, 3)), (-1.0, -1.0))
    assert disagreement(one, Answer(((0, 3), (0, 1)), (-1.0, -1.0))) == 0
    assert disagreement(one, Answer(((0, 1), (2, 2)), (-1.0, -1.5))) == 0.5
    assert disagreement(one, Answer(((0, 1),), (-1.0,))) == float("inf")


def test_unused_sids_are_new_and_different() -> None:
    found = [tuple(sid) for sid in unused_sids(SIDS, 12, seed=0)]
    assert len(set(found)) == 12
    assert SIDS.illegal_share(found) == 1.0


@pytest.mark.parametrize("tokens", [3, 20, 61])
def test_prompts_are_exactly_as_long_as_asked_and_end_with_whole_items(tokens: int) -> None:
    codes_NL = np.array([[0, 1], [2, 2]])
    for prompt in history_prompts(SPACE, codes_NL, 4, tokens, np.random.default_rng(0)):
        assert len(prompt) == tokens
        history = prompt[-((tokens - 1) // 2) * 2 :]
        codes = [tuple(token - SPACE.level_start(level) for level, token in enumerate(history[-2:]))]
        assert SIDS.illegal_share(codes) == 0
        assert all(token < SPACE.first_token_id for token in prompt[: tokens - len(history)])


def test_a_prompt_without_room_for_an_item_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        history_prompts(SPACE, np.array([[0, 1]]), 1, 2, np.random.default_rng(0))


def test_a_filter_is_the_same_in_every_process_and_another_by_another_name() -> None:
    assert legal_mask(0.5, "rule", 1000).tolist() == legal_mask(0.5, "rule", 1000).tolist()
    assert legal_mask(0.5, "rule", 1000).tolist() != legal_mask(0.5, "fresh", 1000).tolist()
    assert legal_mask(0.25, "rule", 10_000).mean() == pytest.approx(0.25, abs=0.02)
