"""The reference engine honours deadlines, filters and result counts, takes new rows, and says what does not fit."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from service.engine.base import BeamRequest, CatalogDelta, EngineOptions, LegalSlots, TokenRow
from service.engine.torch_engine import TorchEngine, start_torch_engine
from service.errors import DeadlineError, EngineError, UnknownVersionError
from service.model.checkpoint import Checkpoint
from tests.tiny_checkpoint import Shape, build

OPTIONS = EngineOptions("float32", max_batch_users=8, kv_cache_gib=0.1, omp_threads=1, smoothing_boost=2.0)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(Path(tmp_path_factory.mktemp("torch")) / "tiny", Shape(tied=request.param))


@pytest_asyncio.fixture
async def engine(checkpoint: Checkpoint) -> AsyncIterator[TorchEngine]:
    engine = await start_torch_engine(checkpoint, OPTIONS)
    yield engine
    await engine.close()


def ask(checkpoint: Checkpoint, width: int = 60, **fields: object) -> BeamRequest:
    sids = [tuple(sid) for sid in checkpoint.catalog_tensors().codes_NL[:4].tolist()]
    return BeamRequest(checkpoint.prompt.build(sids), width, 0, **fields)  # type: ignore[arg-type]


async def test_a_filter_leaves_its_own_sids_with_their_own_scores(engine: TorchEngine, checkpoint: Checkpoint) -> None:
    everything = await engine.recommend("a", ask(checkpoint))
    by_slot = sorted(everything.sids)
    legal = LegalSlots.of("third", np.arange(len(by_slot)) % 3 == 0)
    some = await engine.recommend("b", ask(checkpoint, legal=legal, num_results=7))
    scores = dict(zip(everything.sids, everything.scores, strict=True))
    want = [sid for sid in everything.sids if by_slot.index(sid) % 3 == 0][:7]
    assert list(some.sids) == want
    assert some.scores == pytest.approx([scores[sid] for sid in want], abs=1e-5)


async def test_a_filter_that_leaves_nothing_gives_an_empty_answer(engine: TorchEngine, checkpoint: Checkpoint) -> None:
    answer = await engine.recommend("a", ask(checkpoint, legal=LegalSlots.of("none", np.zeros(60, bool))))
    assert (answer.sids, answer.scores, answer.level_scores) == ((), (), ())


async def test_a_passed_deadline_is_not_computed(engine: TorchEngine, checkpoint: Checkpoint) -> None:
    with pytest.raises(DeadlineError):
        await engine.recommend("late", ask(checkpoint, deadline=time.monotonic() - 0.01))
    assert (await engine.recommend("early", ask(checkpoint, deadline=time.monotonic() + 60))).sids


async def test_a_new_output_row_moves_its_own_code_and_an_input_row_what_follows_it(
    engine: TorchEngine, checkpoint: Checkpoint
) -> None:
    before = await engine.recommend("a", ask(checkpoint))
    code, width = before.sids[0][0], engine._model.sid_rows.shape[1]
    given = engine._model.sid_rows[code].tolist()
    said = (-8 * engine._model.level_head(0)[code]).tolist()
    await engine.write_tokens([TokenRow(0, code, given, said)])
    after = await engine.recommend("b", ask(checkpoint))
    assert after.sids[0][0] != code
    unused = ask(checkpoint).prompt_ids[-1]
    level, used = divmod(unused - checkpoint.space.first_token_id, checkpoint.space.codes)
    await engine.write_tokens([TokenRow(level, used, [1.0] * width, [1.0] * width)])
    assert (await engine.recommend("c", ask(checkpoint))).scores != after.scores


@pytest.mark.parametrize("row", [TokenRow(9, 0, [0.0], [0.0]), TokenRow(0, 0, [0.0], [0.0])], ids=["level", "width"])
async def test_rows_that_do_not_fit_are_refused(engine: TorchEngine, row: TokenRow) -> None:
    with pytest.raises(EngineError, match="no token of level 9|must be 64 finite floats"):
        await engine.write_tokens([row])


async def test_a_delta_that_does_not_follow_and_a_version_that_is_gone_are_refused(
    engine: TorchEngine, checkpoint: Checkpoint
) -> None:
    with pytest.raises(EngineError, match="does not follow 0"):
        await engine.update_catalog(CatalogDelta(3, 2))
    for version in range(1, 10):
        await engine.update_catalog(CatalogDelta(version, version - 1))
    with pytest.raises(UnknownVersionError):
        await engine.recommend("old", ask(checkpoint))
