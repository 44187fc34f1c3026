"""What a connection may cost before a request exists and after its answer: uvicorn waits for slow clients for ever.

Silent connections, heads that trickle in, answers that nobody reads: each would hold memory and a file descriptor for
as long as a client likes. Here each has a time, heads have a size, and connections a number; when that is reached the
one that idled longest makes room. Bodies are `api.middleware.Gate`'s business, requests `Admission`'s.
"""

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.metrics import Metrics

OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections, how long a head (bytes, seconds), how long without a byte of an answer being taken."""

    connections: int
    head_bytes: int = 64 << 10
    head_seconds: float = 5.0
    rest_seconds: float = 10.0
    taking_seconds: float = 10.0


class LimitedProtocol(HttpToolsProtocol):
    """One connection; `limited_protocol` gives the class its limits."""

    limits: ConnectionLimits
    metrics: Metrics

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came: it gets the time of a head for its first one, or makes another leave."""
        super().connection_made(transport)
        self._reading: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._in_head, self._in_message, self._head_bytes = False, False, 0
        self._idle_since = self.loop.time()
        if len(self.connections) > self.limits.connections and not self._make_room():
            self._refuse(503, "overloaded", "The server has as many connections as it may", "connections")
            return
        self._read_within(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went."""
        for timer in (self._reading, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; those of a head are counted."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(431, "head-too-large", "The request's head is too large", "slow_client")

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._in_head, self._in_message, self._head_bytes = True, True, 0
        self._read_within(self.limits.head_seconds)

    def on_headers_complete(self) -> None:
        """A request's head is whole; its body has limits of its own while it is wanted."""
        self._in_head = False
        self._read_within(None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._in_message = False
        self._read_within(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is written; what is left of its request is read for a while, so that the answer can be seen."""
        self._idle_since = self.loop.time()
        if self._in_message and not self._in_head:
            self._read_within(self.limits.rest_seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not take its answer."""
        super().pause_writing()
        self._taking = self.loop.call_later(self.limits.taking_seconds, self._abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more is asked: close, and not only once the last byte was taken."""
        self._close()

    def _read_within(self, seconds: float | None) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = None if seconds is None else self.loop.call_later(seconds, self._give_up_reading)

    def _give_up_reading(self) -> None:
        if self._in_head:
            self._refuse(408, "head-too-slow", "The request's head did not arrive in time", "slow_client")
        else:
            self.transport.abort()  # a client that says nothing is refused nothing

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest; False if all are at work."""
        others: set[Any] = self.connections - {self}
        idle = [other for other in others if other.is_idle and not other.transport.is_closing()]
        if idle:
            self.metrics.shed.labels("connections").inc()
            min(idle, key=lambda other: other._idle_since).transport.abort()
        return bool(idle)

    @property
    def is_idle(self) -> bool:
        """Whether it holds no request, not even a part of one."""
        return not self._in_message and (self.cycle is None or self.cycle.response_complete)

    def _refuse(self, status: int, slug: str, title: str, reason: str) -> None:
        """Answer before there is a request, and close."""
        self.metrics.shed.labels(reason).inc()
        body = orjson.dumps({"type": f"urn:groundrec:problem:{slug}", "title": title, "status": status})
        retry = "retry-after: 1\r\n" if status == 503 else ""
        head = (
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n{retry}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        if self.cycle is None or self.cycle.response_complete:  # else its answer would be torn apart
            self.transport.write(head.encode() + body)
        self._close()

    def _close(self) -> None:
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._taking = self._taking or self.loop.call_later(self.limits.taking_seconds, self._abort)

    def _abort(self) -> None:
        self.metrics.shed.labels("slow_client").inc()
        self.transport.abort()


def limited_protocol(limits: ConnectionLimits, metrics: Metrics) -> type[LimitedProtocol]:
    """The protocol for uvicorn's configuration."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits, "metrics": metrics})


def raise_file_limit() -> None:
    """Let this process open what the system grants it: the usual soft limit of 1,024 is less than its connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
