"""One checkpoint per backbone family, served by both engines for as long as its module's tests run."""

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
import torch

from service.engine.torch_engine import start_torch_engine
from service.engine.vllm_engine import start_vllm_engine
from service.model.grounded_lm import load_grounded_lm
from tests.parity.twin import OPTIONS, SHAPES, Twin
from tests.tiny_checkpoint import build


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(SHAPES))
async def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Twin]:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    checkpoint = build(folder, SHAPES[request.param])
    reference = await start_torch_engine(checkpoint, OPTIONS)
    engine = await start_vllm_engine(checkpoint, OPTIONS)
    codes_NL = checkpoint.catalog_tensors().codes_NL.astype(np.int64)
    yield Twin(checkpoint, load_grounded_lm(checkpoint, torch.float32), reference, engine, codes_NL)
    await engine.close()
    await reference.close()
