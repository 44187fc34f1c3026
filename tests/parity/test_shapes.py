"""The ends of what a SID may be, a prompt of many chunks, another number format, and a compiled model: still the same.

Each has an engine of its own, so each costs a start.
"""

import dataclasses
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from service.engine.base import EngineOptions
from service.engine.torch_engine import start_torch_engine
from service.engine.vllm_engine import start_vllm_engine
from tests.parity.live import OPTIONS, SHAPE, Pair, same
from tests.tiny_checkpoint import Shape, build

pytestmark = pytest.mark.filterwarnings("ignore")
BF16_BOUND = 0.25  # of a log-probability summed over four levels; measured 0.02..0.1 on these random models


@asynccontextmanager
async def served(folder: Path, shape: Shape, options: EngineOptions = OPTIONS) -> AsyncIterator[Pair]:
    """The reference in fp32 beside vLLM as told."""
    checkpoint = build(folder / "tiny", shape)
    codes_NL = np.unique(checkpoint.catalog_tensors().codes_NL, axis=0)
    reference = await start_torch_engine(checkpoint, OPTIONS)
    engine = await start_vllm_engine(checkpoint, options)
    try:
        yield Pair(checkpoint, reference, engine, [tuple(sid) for sid in codes_NL.tolist()])
    finally:
        await engine.close()
        await reference.close()
    assert engine.exit_code == 0


@pytest.mark.parametrize(
    "shape",
    [
        Shape("llama", levels=2, codes=8192, items=4000, max_items=30),
        Shape("qwen2", levels=8, codes=6, items=3000, max_items=20),
    ],
    ids=["2 levels of 8192", "8 levels of 6"],
)
async def test_from_two_to_eight_levels_and_up_to_8192_codes(tmp_path: Path, shape: Shape) -> None:
    async with served(tmp_path, shape) as pair:
        for seed, (width, items) in enumerate([(1, 1), (20, 10), (300, 20)]):
            request = pair.request(seed, width, items=items)
            answer = await pair.vllm.recommend(f"shape-{seed}", request)
            assert same(answer, await pair.torch.recommend("reference", request))


async def test_bfloat16_ranks_as_float32_within_the_stated_deviation(tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, dtype="bfloat16", prefill_tokens=2048)
    async with served(tmp_path, dataclasses.replace(SHAPE, items=400), options) as pair:
        for seed in range(6):
            request = pair.request(seed, 512, items=5 * seed + 1)
            answer = await pair.vllm.recommend(f"bf16-{seed}", request)
            want = await pair.torch.recommend("reference", request)
            known = dict(zip(want.sids, want.scores, strict=True))
            assert set(answer.sids) == set(known)
            worst = max(abs(known[sid] - score) for sid, score in zip(answer.sids, answer.scores, strict=True))
            assert worst <= BF16_BOUND, worst
            assert len(set(answer.sids[:20]) & set(want.sids[:20])) >= 16


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++")
async def test_a_compiled_engine_answers_as_the_reference_and_starts_again_from_its_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = dataclasses.replace(OPTIONS, compile=True, compile_cache=str(cache))
    made: list[set[Path]] = []
    for attempt in range(2):
        async with served(tmp_path / str(attempt), SHAPE, options) as pair:
            for seed, (width, items) in enumerate([(1, 1), (20, 12), (200, 30)]):
                request = pair.request(seed, width, items=items)
                answer = await pair.vllm.recommend(f"compiled-{seed}", request)
                assert same(answer, await pair.torch.recommend("reference", request))
        made.append(set(cache.rglob("*.so")))
    assert made[0] and made[1] == made[0]
