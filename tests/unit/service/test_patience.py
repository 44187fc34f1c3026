"""Patience ends with a limit that is really over, not with an event loop that came round late."""

import asyncio
import socket
import time

import pytest

from service.patience import within


async def answer(of: asyncio.StreamReader) -> bytes:
    return await of.read(64)


async def pair() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, socket.socket]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    return reader, writer, theirs


async def test_an_answer_that_lies_there_is_taken_however_late_the_loop_is() -> None:
    reader, writer, theirs = await pair()
    waiting = asyncio.ensure_future(within(0.02, answer(reader)))
    await asyncio.sleep(0)
    theirs.sendall(b"in time")
    time.sleep(0.1)  # the loop does something else for longer than the limit
    assert await waiting == b"in time"
    writer.close()
    theirs.close()


async def test_no_answer_ends_with_the_limit_and_the_work_with_it() -> None:
    reader, writer, theirs = await pair()
    with pytest.raises(TimeoutError):
        await within(0.02, answer(reader))
    again = asyncio.ensure_future(within(5, answer(reader)))  # the reader is free: the first work is over
    await asyncio.sleep(0)
    theirs.sendall(b"later")
    assert await again == b"later"
    writer.close()
    theirs.close()


async def test_a_failure_of_the_work_is_the_caller_s() -> None:
    async def fails() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await within(1, fails())


async def test_a_caller_that_is_cancelled_takes_the_work_along() -> None:
    ended = asyncio.Event()

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    waiting = asyncio.ensure_future(within(60, long()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(ended.wait(), 60)
