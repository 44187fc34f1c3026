"""What many tests share: a real Redis, emptied before each use, and one small checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from service.model.checkpoint import Checkpoint
from tests.redis_server import RedisServer
from tests.service_doubles import exact_checkpoint
from tests.tiny_checkpoint import Shape

SHAPE = Shape(levels=3, codes=16, items=60, memory=False)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return exact_checkpoint(Path(tmp_path_factory.mktemp("checkpoint")) / "tiny", SHAPE)
