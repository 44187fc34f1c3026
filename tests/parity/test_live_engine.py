"""What a running engine is asked to do beside plain answers: filters, changes of the catalogue, deadlines, new rows.

Always against the reference in fp32, or against what the engine itself held before.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import pytest_asyncio

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, LegalSlots, TokenRow
from service.engine.torch_engine import start_torch_engine
from service.engine.vllm_engine import start_vllm_engine
from service.errors import DeadlineError, EngineError, InvalidRequestError, UnknownVersionError
from service.model.quantizer import OpenedCode
from service.model.semantic_ids import Sid
from service.model.trie import SiblingMix
from service.opened_codes import OpenedCodes, code_entry
from tests.parity.live import OPTIONS, SHAPE, Pair, same
from tests.tiny_checkpoint import EMBEDDING_WIDTH, build

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("ignore")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    checkpoint = build(tmp_path_factory.mktemp("live") / "tiny", SHAPE)
    codes_NL = np.unique(checkpoint.catalog_tensors().codes_NL, axis=0)
    reference = await start_torch_engine(checkpoint, OPTIONS)
    engine = await start_vllm_engine(checkpoint, OPTIONS)
    yield Pair(checkpoint, reference, engine, [tuple(sid) for sid in codes_NL.tolist()])
    await engine.close()
    await reference.close()


async def together(pair: Pair, requests: Sequence[BeamRequest]) -> list[BeamAnswer]:
    return await asyncio.gather(*[pair.vllm.recommend(f"live-{n}", request) for n, request in enumerate(requests)])


async def agree(pair: Pair, requests: Sequence[BeamRequest]) -> list[BeamAnswer]:
    """The batch's answers, each compared with the reference's."""
    answers = await together(pair, requests)
    for request, answer in zip(requests, answers, strict=True):
        assert same(answer, await pair.torch.recommend("reference", request))
    return answers


async def idle(pair: Pair) -> int:
    """Free blocks once nothing is unfinished."""
    while (held := await pair.vllm.statistics()).unfinished:
        await asyncio.sleep(0.01)
    return held.free_blocks


async def test_filters_exclusions_and_result_numbers_mix_in_one_batch(pair: Pair) -> None:
    random = np.random.default_rng(0)
    masks = [random.random(len(pair.sids)) < share for share in (0.5, 0.05, 0.002)]
    filters = [LegalSlots.of(f"rule-{n}", mask) for n, mask in enumerate(masks)]
    requests = [
        pair.request(1),
        pair.request(2, 40, legal=filters[0], num_results=5),
        pair.request(3, 10, legal=filters[1], excluded=[pair.sids[n] for n in np.flatnonzero(masks[1])[:60]]),
        pair.request(4, 50, legal=filters[2], items=30),
        pair.request(5, 1, items=2),
        pair.request(6, 512, items=29),
        pair.request(7, 30, legal=LegalSlots.of("nothing", np.zeros(len(pair.sids), bool))),
    ]
    answers = await agree(pair, requests)
    assert [len(answer.sids) for answer in answers] == [20, 5, 10, int(masks[2].sum()), 1, 512, 0]
    for request, answer in zip(requests, answers, strict=True):
        legal = np.ones(len(pair.sids), bool) if request.legal is None else request.legal.mask(len(pair.sids))
        allowed = {pair.sids[slot] for slot in np.flatnonzero(legal)} - set(request.excluded)
        assert set(answer.sids) <= allowed and len(set(answer.sids)) == len(answer.sids)


async def test_an_answer_does_not_depend_on_who_else_is_in_the_batch(pair: Pair) -> None:
    """fp32: the same SIDs in the same order; scores within 1e-4, for a matrix product sums by the batch's size."""
    wanted = pair.request(11, 30)
    alone = (await together(pair, [wanted]))[0]
    for company in (1, 3, 7):
        others = [pair.request(20 + n, 5 + 60 * n, items=3 * n + 1) for n in range(company)]
        answer = (await together(pair, [*others, wanted]))[-1]
        assert answer.sids == alone.sids
        assert answer.scores == pytest.approx(alone.scores, abs=1e-4)


async def test_an_answer_tells_where_its_time_went_and_what_was_cached(pair: Pair) -> None:
    before, start = await pair.vllm.statistics(), time.monotonic()
    costs = [(await pair.vllm.recommend("told", pair.request(60))).cost for _ in range(2)]
    took, after = time.monotonic() - start, await pair.vllm.statistics()
    spent = 0.0
    for cost in costs:
        assert cost is not None and min(cost.prefill_seconds, cost.decode_seconds) > 0 <= cost.wait_seconds
        spent += cost.wait_seconds + cost.prefill_seconds + cost.decode_seconds
    assert spent < took
    assert costs[1] and 0 < costs[1].cached_tokens <= after.cached_tokens - before.cached_tokens


async def test_a_late_request_costs_no_prefill_and_says_so(pair: Pair) -> None:
    before = await pair.vllm.statistics()
    for request in (pair.request(30, deadline=time.monotonic()), pair.request(31, deadline=time.monotonic() - 10)):
        with pytest.raises(DeadlineError):
            await pair.vllm.recommend("late", request)
    after = await pair.vllm.statistics()
    assert (after.prompt_tokens, after.unfinished) == (before.prompt_tokens, 0)
    in_time = pair.request(30, deadline=time.monotonic() + 60)
    assert (await together(pair, [in_time]))[0].sids


async def test_requests_that_become_late_in_the_queue_are_dropped_there(pair: Pair) -> None:
    before = await pair.vllm.statistics()
    deadline = time.monotonic() + 0.05
    crowd = [pair.request(100 + n, 512, items=30) for n in range(16)]
    late = [pair.request(200 + n, 20, items=30, deadline=deadline) for n in range(40)]
    answers = await asyncio.gather(
        *[pair.vllm.recommend(f"crowd-{n}", request) for n, request in enumerate([*crowd, *late])],
        return_exceptions=True,
    )
    refused = [answer for answer in answers if isinstance(answer, DeadlineError)]
    assert len(refused) >= 20 and not any(isinstance(answer, BaseException) for answer in answers[:16])
    after = await pair.vllm.statistics()
    assert after.unfinished == 0 and after.answered - before.answered < len(answers)


async def test_production_stack_634_an_aborted_request_gives_everything_back(pair: Pair) -> None:
    base = await idle(pair)
    tasks = [asyncio.create_task(pair.vllm.recommend(f"gone-{n}", pair.request(300 + n, 512))) for n in range(24)]
    await asyncio.sleep(0.02)
    during = await pair.vllm.statistics()
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert during.unfinished and any(isinstance(answer, asyncio.CancelledError) for answer in ended)
    assert await idle(pair) == base
    await agree(pair, [pair.request(330)])


@pytest.mark.parametrize("width", [0, 513])
async def test_a_width_that_is_no_beam_is_refused(pair: Pair, width: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"1\.\.512 wide"):
        await pair.vllm.recommend("wide", pair.request(1, width))


async def test_a_prompt_that_is_too_long_is_refused(pair: Pair) -> None:
    longest = pair.checkpoint.prompt.max_tokens
    for prompt in ([], [1] * (longest + 1)):
        with pytest.raises(InvalidRequestError, match=rf"1\.\.{longest} tokens"):
            await pair.vllm.recommend("long", BeamRequest(prompt, 5, 0))
    assert (await pair.vllm.recommend("longest", BeamRequest([1] * longest, 5, 0))).sids


async def test_new_rows_are_used_at_once_and_cached_prompts_that_hold_the_token_are_forgotten(pair: Pair) -> None:
    request = pair.request(40, 30, items=30)
    before = (await agree(pair, [request]))[0]
    await together(pair, [request])  # now its prompt is cached
    width = pair.checkpoint.manifest.lm.hidden_size
    random = np.random.default_rng(4)
    level, code = 1, (request.prompt_ids[-3] - pair.checkpoint.space.level_start(1))
    rows = [
        TokenRow(level, code, random.normal(size=width).tolist(), random.normal(size=width).tolist()),
        TokenRow(3, 0, random.normal(size=width).tolist(), random.normal(size=width).tolist()),
    ]
    for engine in (pair.vllm, pair.torch):
        await engine.write_tokens(rows)
    after = (await agree(pair, [request, pair.request(41, 30), pair.request(42, 30, items=5)]))[0]
    assert max(abs(a - b) for a, b in zip(before.scores, after.scores, strict=True)) > 0.01


async def test_an_opened_code_scores_alike_as_history_and_as_answer(pair: Pair) -> None:
    """What a service does when it opens a code: rows by `OpenedCodes`, written before a version that has SIDs below."""
    quantizer, vector_D = pair.checkpoint.quantizer(), np.random.default_rng(6).normal(size=EMBEDDING_WIDTH)
    opened = OpenedCode(0, quantizer.codes, tuple(vector_D.tolist()))
    change = OpenedCodes(pair.checkpoint, quantizer, 0.05).change([code_entry(opened)])
    below: list[Sid] = [
        (opened.code, *rest) for rest in np.random.default_rng(7).integers(0, SHAPE.codes, (12, 3)).tolist()
    ]
    mixes: dict[Sid, SiblingMix] = {(opened.code,): SiblingMix((2, 5, 11), (-0.4, -1.6, -2.1))}
    prompt = pair.checkpoint.prompt.build([*pair.sids[:4], below[0], *pair.sids[4:8]])
    request, closed = BeamRequest(prompt, 60, 3), BeamRequest(prompt, 60, 0)
    assert change is not None
    for engine in (pair.vllm, pair.torch):
        await engine.update_catalog(CatalogDelta(3, 0, below, (), mixes))
    before = await agree(pair, [request, closed])  # its prompt is cached with the row that training left
    for engine in (pair.vllm, pair.torch):
        await engine.write_tokens(change.rows)
    after = await agree(pair, [request, closed, pair.request(60, 200, version=3), pair.request(61, 30)])
    assert max(abs(a - b) for a, b in zip(before[1].scores, after[1].scores, strict=True)) > 1e-3
    everything = await agree(pair, [BeamRequest(prompt, 512, 3)])
    assert set(below) & set(everything[0].sids) and not {sid[0] for sid in after[1].sids} & {opened.code}


@pytest.mark.parametrize("row", [TokenRow(4, 0, (0.0,) * 64, (0.0,) * 64), TokenRow(0, 0, (0.0,) * 63, (0.0,) * 64)])
async def test_rows_that_do_not_fit_are_refused_and_change_nothing(pair: Pair, row: TokenRow) -> None:
    fits = TokenRow(0, 0, (9.0,) * 64, (9.0,) * 64)
    with pytest.raises(EngineError):
        await pair.vllm.write_tokens([fits, row])
    await agree(pair, [pair.request(45, 30)])


async def test_additions_and_deletions_reach_the_next_request_and_old_versions_stay_what_they_were(pair: Pair) -> None:
    new, request = pair.unused(40), pair.request(50, 60)
    old = (await agree(pair, [request]))[0]
    gone = list(old.sids[:10])
    mixes = {sid: SiblingMix((sid[-1] % 16, (sid[-1] + 1) % 16), (-0.3, -1.35)) for sid in new[:20]}
    deltas = [CatalogDelta(7, 3, new, (), mixes), CatalogDelta(9, 7, (), [*gone, *new[:5]], {})]
    for delta in deltas:
        for engine in (pair.vllm, pair.torch):
            await engine.update_catalog(delta)
    versions = [pair.request(50, 60, version=version) for version in (0, 7, 9)]
    answers = await agree(pair, [*versions, pair.request(51, 512, version=9), pair.request(52, 512, version=7)])
    assert answers[0].sids == old.sids
    assert not (set(gone) | set(new[:5])) & (set(answers[2].sids) | set(answers[3].sids))
    with pytest.raises(EngineError, match="does not follow"):
        await pair.vllm.update_catalog(CatalogDelta(11, 7))
    with pytest.raises(UnknownVersionError, match="8"):
        await pair.vllm.recommend("unknown", pair.request(50, version=8))


async def test_vllm_39863_a_dead_engine_process_fails_every_call_at_once(pair: Pair) -> None:
    """Runs last: it ends the module's engine, which is stopped before, lest it answer first."""
    os.kill(pair.vllm.pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(pair.vllm.recommend(f"orphan-{n}", pair.request(60 + n, 512))) for n in range(8)]
    await asyncio.sleep(0.01)
    os.kill(pair.vllm.pid, signal.SIGKILL)
    await asyncio.wait_for(pair.vllm.gone(), 60)
    for task in tasks:
        with pytest.raises(EngineError, match="is gone"):
            await asyncio.wait_for(task, 10)
    for call in (pair.vllm.canary(), pair.vllm.update_catalog(CatalogDelta(12, 9)), pair.vllm.statistics()):
        with pytest.raises(EngineError, match="is gone"):
            await call
