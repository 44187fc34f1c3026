"""One tiny world and one finished run of it, shared by all tests that only look."""

import pytest
import torch

from tests.training.tiny_run import TinyWorld, build
from training.pipeline import Pipeline


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return build(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def finished(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    pipeline = world.pipeline(tmp_path_factory.mktemp("finished") / "run")
    pipeline.train()
    return pipeline
