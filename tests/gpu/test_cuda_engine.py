"""The engine on a GPU: what parity proves on the CPU, where vLLM runs its V2 runner, CUDA graphs and FlashAttention.

Written without a GPU at hand; nothing here has run yet. Each test says why it is skipped.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from service.engine.torch_engine import start_torch_engine
from service.engine.vllm_engine import start_vllm_engine
from tests.parity.live import OPTIONS, SHAPE, Pair, same
from tests.tiny_checkpoint import build

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "CUDA graphs"])
@pytest.mark.parametrize(
    "ranks",
    [1, pytest.param(2, marks=pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices"))],
)
async def test_the_gpu_engine_answers_as_the_reference(ranks: int, compiled: bool, tmp_path: Path) -> None:
    checkpoint = build(tmp_path / "tiny", dataclasses.replace(SHAPE, hidden=128))
    options = dataclasses.replace(OPTIONS, dtype="bfloat16", compile=compiled, tensor_parallel=ranks)
    codes_NL = np.unique(checkpoint.catalog_tensors().codes_NL, axis=0)
    reference = await start_torch_engine(checkpoint, OPTIONS)
    engine = await start_vllm_engine(checkpoint, options)
    pair = Pair(checkpoint, reference, engine, [tuple(sid) for sid in codes_NL.tolist()])
    try:
        for seed, (width, items) in enumerate([(1, 1), (20, 12), (300, 30), (20, 30)]):
            request = pair.request(seed, width, items=items)
            answer = await engine.recommend(f"gpu-{seed}", request)
            assert same(answer, await reference.recommend("reference", request), bound=0.25)
    finally:
        await engine.close()
        await reference.close()


def test_the_look_back_buffer_and_the_flash_backend_import() -> None:
    from service.engine.vllm_cuda import BeamFlashBackend, BeamFlashImpl, LookBackState

    assert BeamFlashBackend.get_impl_cls() is BeamFlashImpl
    assert LookBackState.prepare_inputs is not LookBackState.__mro__[1].prepare_inputs
