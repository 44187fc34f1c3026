"""Clients that say nothing, speak slowly, never listen or are too many hold nothing for long; others do not notice."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn

from service.connections import ConnectionLimits, limited_protocol
from service.metrics import Metrics

LARGE = 8 << 20  # more than the buffers of both ends hold
PATIENCE = 60
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LIMITS = ConnectionLimits(100, head_bytes=4096, head_seconds=0.2, rest_seconds=0.2, taking_seconds=0.2)


class Served:
    """A server of one small application."""

    def __init__(self, port: int, metrics: Metrics, server: uvicorn.Server) -> None:
        self._port, self._metrics, self.server = port, metrics, server
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that is closed at the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def said(self, *parts: bytes) -> bytes:
        """What comes back until the server hangs up."""
        reader, writer = await self.connect()
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):  # what was still being said when the door closed
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                return await reader.read()
        return b""

    def shed(self, reason: str) -> float:
        return self._metrics.registry.get_sample_value("rec_shed_total", {"reason": reason}) or 0.0

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    async def until(self, found: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not found():
                await asyncio.sleep(0.01)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers before it has read anything; ``/large`` with more than a socket holds, ``/hang`` never."""
    if scope["path"] == "/hang":
        await asyncio.Event().wait()
    body = b"x" * (LARGE if scope["path"] == "/large" else 2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(limits: ConnectionLimits = LIMITS, keep_alive: int = PATIENCE) -> AsyncIterator[Served]:
    metrics = Metrics()
    config = uvicorn.Config(
        application,
        http=limited_protocol(limits, metrics),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serve = asyncio.create_task(server.serve(sockets=[listener]))
        served = Served(listener.getsockname()[1], metrics, server)
        await served.until(lambda: server.started)
        try:
            yield served
        finally:
            await served.hang_up()
            server.should_exit = True
            await serve


async def test_a_silent_connection_is_closed() -> None:
    async with serving() as served:
        assert await served.said() == b""
        assert served.shed("slow_client") == 0


async def test_a_head_that_never_ends_is_refused_in_time() -> None:
    async with serving() as served:
        answer = await served.said(b"GET / HTTP/1.1\r\nx-a: 1\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ") and b"urn:groundrec:problem:head-too-slow" in answer
        assert served.shed("slow_client") == 1


async def test_a_second_head_on_one_connection_has_no_more_time_than_the_first() -> None:
    async with serving() as served:
        answer = await served.said(GET, b"GET / HTTP/1.1\r\n")
        assert answer.count(b"HTTP/1.1 ") == 2 and b"HTTP/1.1 408 " in answer


async def test_an_endless_head_is_refused_by_its_size() -> None:
    async with serving(ConnectionLimits(100, head_bytes=4096, head_seconds=PATIENCE)) as served:
        lines = (b"x-%d: " % number + b"a" * 1000 + b"\r\n" for number in range(9))
        answer = await served.said(b"GET / HTTP/1.1\r\n", *lines)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        assert served.shed("slow_client") == 1


async def test_an_answer_nobody_takes_is_given_up() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/ ", b"/large "))
        await served.until(lambda: served.shed("slow_client") == 1 and served.connections == 0)


async def test_an_answer_that_is_taken_slowly_is_given_whole() -> None:
    async with serving(ConnectionLimits(100, taking_seconds=PATIENCE)) as served:
        reader, writer = await served.connect()
        writer.write(GET.replace(b"/ ", b"/large "))
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < LARGE:
            got += len(await reader.read(1 << 20))
            await asyncio.sleep(0.01)
        assert got == LARGE and served.shed("slow_client") == 0


async def test_a_keep_alive_connection_whose_last_answer_was_never_taken_is_closed() -> None:
    limits = ConnectionLimits(100, taking_seconds=0.2)
    async with serving(limits, keep_alive=0) as served:
        reader, writer = await served.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/ ", b"/large "))
        await served.until(lambda: served.connections == 0)


async def test_the_rest_of_a_refused_body_does_not_hold_its_connection() -> None:
    async with serving() as served:
        answer = await served.said(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\nabc")
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_at_the_limit_the_connection_that_idled_longest_makes_room() -> None:
    async with serving(ConnectionLimits(2, head_seconds=PATIENCE)) as served:
        old, new = [await asked(served) for _ in range(2)]
        third = await asked(served)
        assert await old[0].read() == b"" and served.shed("connections") == 1
        for reader, writer in (new, third):
            writer.write(GET)
            assert (await reader.readuntil(b"xx")).startswith(b"HTTP/1.1 200 ")


async def test_connections_at_work_are_never_closed_for_a_new_one() -> None:
    async with serving(ConnectionLimits(2, head_seconds=PATIENCE)) as served:
        busy = [await served.connect() for _ in range(2)]
        for _, writer in busy:
            writer.write(GET.replace(b"/ ", b"/hang "))
        await served.until(lambda: len(served.server.server_state.tasks) == 2)
        answer = await served.said()
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer
        assert not any(reader.at_eof() for reader, _ in busy)


async def test_a_web_socket_is_no_way_around_the_keys() -> None:
    upgrade = (
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: eA==\r\n\r\n"
    )
    async with serving(ConnectionLimits(9), keep_alive=0) as served:
        assert b"101 Switching" not in await served.said(upgrade)


async def test_others_are_served_while_slow_ones_hang_on() -> None:
    async with serving(ConnectionLimits(100, head_seconds=PATIENCE)) as served:
        slow = [await served.connect() for _ in range(50)]
        for _, writer in slow:
            writer.write(b"GET / HT")
        await asked(served)


async def asked(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose first request is answered."""
    reader, writer = await served.connect()
    writer.write(GET)
    async with asyncio.timeout(PATIENCE):
        assert (await reader.readuntil(b"xx")).startswith(b"HTTP/1.1 200 ")
    return reader, writer
