"""vLLM in production, seen from the service: a process of its own that one socket leads to.

This side holds no model and imports no vLLM. It turns a `BeamRequest` into a message, tells the process when the caller
goes away, and passes catalogue changes on. The process cannot be restarted in place: once it is gone, every call is an
`EngineError`, and whoever runs the service starts another one.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineOptions, EngineStatistics, TokenRow
from service.engine.channel import AsyncChannel
from service.engine.vllm_plugin import check_version, grounded_architecture
from service.engine.vllm_process import engine_environment
from service.engine.wire import decode_answer, encode_delta, encode_request, encode_tokens
from service.errors import CheckpointError, EngineError, InvalidRequestError, StartupError, VersionError
from service.model.checkpoint import Checkpoint

MAX_BEAM_WIDTH = 512
CLOSING_SECONDS = 10.0

_REFUSALS: dict[str, type[StartupError]] = {"CheckpointError": CheckpointError, "VersionError": VersionError}


class VllmEngine:
    """Implements `service.engine.base.Engine` over a running engine process."""

    def __init__(self, process: asyncio.subprocess.Process, channel: AsyncChannel, checkpoint: Checkpoint) -> None:
        self._process = process
        self._channel = channel
        self._levels = checkpoint.space.levels
        self._longest = checkpoint.prompt.max_tokens
        self._canary_prompt = checkpoint.prompt.prefix_ids
        self._version = 0
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._gone: str | None = None
        self._receiving = asyncio.create_task(self._receive())

    @property
    def pid(self) -> int:
        """The engine process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How the engine process ended, None while it runs."""
        return self._process.returncode

    async def recommend(self, request_id: str, request: BeamRequest) -> BeamAnswer:
        """See `Engine.recommend`; cancelling forgets the request in the engine, too.

        Raises:
            InvalidRequestError: the beam's width or the prompt's length is beyond what the engine takes.
        """
        self._check(request)
        name = f"{request_id}#{next(self._numbers)}"
        message = {"id": name, "prompt": list(request.prompt_ids), "request": encode_request(request)}
        sent = time.monotonic()
        try:
            answer = await self._ask(name, message)
        except asyncio.CancelledError:
            self._channel.send({"abort": name})
            raise
        taken, ended = answer["times"]
        return decode_answer(
            answer["data"],
            self._levels,
            request.catalog_version,
            wait_seconds=taken - sent,
            engine_seconds=ended - taken,
        )

    async def update_catalog(self, delta: CatalogDelta) -> None:
        """See `Engine.update_catalog`."""
        name = f"delta#{next(self._numbers)}"
        await self._ask(name, {"id": name, "delta": encode_delta(delta)})
        self._version = max(self._version, delta.version)

    async def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        """See `Engine.write_tokens`."""
        name = f"tokens#{next(self._numbers)}"
        await self._ask(name, {"id": name, "tokens": encode_tokens(rows)})

    async def statistics(self) -> EngineStatistics:
        """What the engine process holds and has done.

        Raises:
            EngineError: the engine is gone.
        """
        name = f"statistics#{next(self._numbers)}"
        answer = await self._ask(name, {"id": name, "statistics": True})
        return EngineStatistics(**{field: answer[field] for field in EngineStatistics.__slots__})

    async def canary(self) -> None:
        """See `Engine.canary`."""
        await self.recommend("canary", BeamRequest(self._canary_prompt, 1, self._version))

    async def gone(self) -> None:
        """See `Engine.gone`: the engine process ended."""
        await asyncio.shield(self._receiving)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._channel.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSING_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._receiving

    async def _ask(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        if self._gone:
            raise EngineError(self._gone)
        future = asyncio.get_running_loop().create_future()
        self._waiting[name] = future
        try:
            self._channel.send(message)
            answer = await future
        finally:
            del self._waiting[name]
        if "refused" in answer:
            raise EngineError(f"the engine refused: {answer['detail']}")
        return dict(answer)

    async def _receive(self) -> None:
        while (message := await self._channel.receive()) is not None:
            name = message.get("answer") or message.get("done") or message.get("refused")
            future = self._waiting.get(str(name))
            if future and not future.done():
                future.set_result(message)
        self._gone = f"the engine process {self._process.pid} is gone"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineError(self._gone))

    def _check(self, request: BeamRequest) -> None:
        if not 1 <= request.beam_width <= MAX_BEAM_WIDTH:
            raise InvalidRequestError(f"a beam is 1..{MAX_BEAM_WIDTH} wide, not {request.beam_width}")
        if not 1 <= len(request.prompt_ids) <= self._longest:
            raise InvalidRequestError(f"a prompt has 1..{self._longest} tokens here, not {len(request.prompt_ids)}")


async def start_vllm_engine(checkpoint: Checkpoint, options: EngineOptions) -> VllmEngine:
    """Start the engine process on a checkpoint.

    Raises:
        VersionError: vLLM is missing or not the pinned version.
        CheckpointError: the backbone's architecture has no grounded class.
        StartupError: the process did not come up; its standard error has the reason.
    """
    check_version()
    grounded_architecture(checkpoint)
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "service.engine.vllm_process", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            env=engine_environment(options),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a signal to the service's group is the service's to handle: it drains first
        )
    channel = await AsyncChannel.over(ours)
    channel.send({"checkpoint": str(checkpoint.folder.absolute()), "options": dataclasses.asdict(options)})
    try:
        _check_ready(await channel.receive())
    except BaseException:
        await channel.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return VllmEngine(process, channel, checkpoint)


def _check_ready(message: dict[str, Any] | None) -> None:
    if message is None:
        raise StartupError("--engine vllm: its process ended before it was ready; the lines above have the reason")
    if "failed" in message:
        kind, detail = message["failed"], message["detail"]
        raise _REFUSALS.get(kind, StartupError)(detail if message["foreseen"] else f"--engine vllm: {kind}: {detail}")
