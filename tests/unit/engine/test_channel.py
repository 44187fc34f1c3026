"""Frames cross a socket whole and in order, and a broken one is the end, not a wrong message."""

import asyncio
import socket
import threading

import pytest

from service.engine.channel import AsyncChannel, Channel, Message, pack


async def test_both_ends_understand_each_other() -> None:
    ours, theirs = socket.socketpair()
    parent, child = await AsyncChannel.over(ours), Channel(theirs)
    messages: list[Message] = [
        {"id": "a", "bits": b"\x00\xff" * 200_000},
        {"numbers": [1, 2**40, -0.5], "nothing": None},
    ]

    def repeat() -> None:
        for _ in messages:
            child.send(child.receive() or {})

    echo = threading.Thread(target=repeat)
    echo.start()
    for message in messages:
        parent.send(message)
    assert [await parent.receive() for _ in messages] == messages
    await asyncio.to_thread(echo.join)
    await parent.close()
    assert await asyncio.to_thread(child.receive) is None
    child.send({"nobody": "hears this"})
    child.close()


@pytest.mark.parametrize("cut", [0, 2, 4, 9])
async def test_a_torn_message_is_the_end(cut: int) -> None:
    ours, theirs = socket.socketpair()
    parent = await AsyncChannel.over(ours)
    theirs.sendall(pack({"id": "whole"}) + pack({"id": "torn"})[:cut])
    theirs.close()
    assert await parent.receive() == {"id": "whole"}
    assert await parent.receive() is None
    await parent.close()
    parent.send({"id": "nobody hears this"})


def test_a_torn_message_is_the_end_for_the_child_too() -> None:
    ours, theirs = socket.socketpair()
    child = Channel(theirs)
    ours.sendall(pack({"id": "whole"}) + pack({"id": "torn"})[:7])
    ours.close()
    assert child.receive() == {"id": "whole"}
    assert child.receive() is None
    child.close()
