"""Messages between the service and its engine process: a length, then msgpack; plain data only, never pickle.

The parent's end is asyncio, the child's blocks in a thread of its own; both see the same frames. What a message means
is `wire`'s and `vllm_process`'s business.
"""

import asyncio
import contextlib
import socket
import struct
from typing import Any

import msgspec

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")
_LIMIT = 2**32 - 1


def pack(message: Message) -> bytes:
    """One frame.

    Raises:
        ValueError: it would be 4 GiB or more.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > _LIMIT:
        raise ValueError(f"a message of {len(body)} bytes does not fit a frame")
    return _LENGTH.pack(len(body)) + body


class Channel:
    """The blocking end. One thread may receive while another sends."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = connected.makefile("rb")

    def send(self, message: Message) -> None:
        """Send a message; one that nobody can receive any more is dropped."""
        with contextlib.suppress(OSError):  # the receiving thread learns it, too
            self._socket.sendall(pack(message))

    def receive(self) -> Message | None:
        """The next message, None when the other end is gone."""
        try:
            head = self._reader.read(_LENGTH.size)
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
            body = self._reader.read(length)
        except (OSError, ValueError):  # ValueError: closed on this side
            return None
        return msgspec.msgpack.decode(body, type=Message) if body and len(body) == length else None

    def close(self) -> None:
        """Hang up."""
        self._reader.close()
        self._socket.close()


class AsyncChannel:
    """The asyncio end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, connected: socket.socket) -> "AsyncChannel":
        """Wrap a connected socket."""
        return cls(*await asyncio.open_connection(sock=connected))

    def send(self, message: Message) -> None:
        """Queue a message for sending; one that nobody can receive any more is dropped."""
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def receive(self) -> Message | None:
        """The next message, None when the other end is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return msgspec.msgpack.decode(await self._reader.readexactly(length), type=Message)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
