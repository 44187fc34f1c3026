"""The service over memory stores and a fake engine, through its HTTP interface."""

from collections.abc import AsyncIterator

import pytest

from service.model.checkpoint import Checkpoint
from tests.service_doubles import Running, running


@pytest.fixture
async def service(checkpoint: Checkpoint) -> AsyncIterator[Running]:
    async with running(checkpoint) as started:
        yield started
