"""Runs the application on a port: opened when the service is ready, closed some time after it was told to stop.

The address is taken (bound) first, so that a busy port is reported in milliseconds, but listens only when everything
behind it works. uvicorn by itself closes the port at SIGTERM, while load balancers still send requests to it.
"""

import asyncio
import gc
import math
import signal
import socket
from types import FrameType

import structlog
import uvicorn

from service.app import Service, open_service
from service.connections import ConnectionLimits, limited_protocol, raise_file_limit
from service.errors import StartupError
from service.health import Health
from service.settings import Settings


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, or until the engine is lost; returns the exit code, 0 or 1.

    Raises:
        StartupError: the service cannot start; the port was never open.
    """
    listener = bind(settings.host, settings.port)
    loop, this_task = asyncio.get_running_loop(), asyncio.current_task()
    assert this_task is not None
    loop.add_signal_handler(signal.SIGTERM, this_task.cancel)
    with listener:
        async with open_service(settings) as service:
            freeze_garbage_collector()
            raise_file_limit()
            server = DrainingServer(server_config(service, settings), service.health, settings.drain_seconds)
            structlog.get_logger().info("serving", host=settings.host, port=settings.port)
            loop.remove_signal_handler(signal.SIGTERM)  # the server's own handler drains
            try:
                await server.serve(sockets=[listener])
            except OSError as error:
                reason = error.strerror or str(error)
                raise StartupError(f"--host {settings.host} --port {settings.port}: {reason}") from None
            return int(server.engine_lost)


def freeze_garbage_collector() -> None:
    """Take what the start left, catalogue and all, out of every later collection: those stalled requests for 100 ms."""
    gc.collect()
    gc.freeze()


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        StartupError: the address cannot be had.
    """
    try:
        return _bind(host, port, reuse=False)
    except OSError:
        pass
    try:
        return _bind(host, port, reuse=True)
    except OSError as error:
        raise StartupError(f"--host {host} --port {port}: {error.strerror or error}") from None


def _bind(host: str, port: int, *, reuse: bool) -> socket.socket:
    """``reuse`` takes an address over from closed connections, but lets two starting services bind it side by side."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def server_config(service: Service, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves: its logging, its lifespan and its patience are ours; there are no web sockets."""
    longest = max(settings.items_timeout_ms, settings.request_timeout_ms) / 1000
    return uvicorn.Config(
        service.app,
        http=limited_protocol(ConnectionLimits(settings.max_connections), service.metrics),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(longest) + 1,
    )


class DrainingServer(uvicorn.Server):
    """At the first signal: unready, serve on for the drain time, then finish what is at work. A second one hurries."""

    def __init__(self, config: uvicorn.Config, health: Health, drain_seconds: float) -> None:
        super().__init__(config)
        self._health = health
        self._drain_seconds = drain_seconds
        self._told = False
        self.engine_lost = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, so that connections which outlast this process do not keep the next one from the address."""
        for listener in sockets or ():
            # accepted connections inherit it; set while the address was only bound, a second service could bind it too
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, asked ten times a second: a lost engine ends the process, so that another is started."""
        if self._health.engine_lost and not self._told:
            structlog.get_logger().error("engine_lost", detail="no canary came back; exit for a restart")
            self.engine_lost = True
            return True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; uvicorn's own handler would also end the process by the signal instead of with code 0."""
        if self._told:
            self.should_exit = True
            return
        self._told = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._health.drain()
        structlog.get_logger().info("draining", seconds=self._drain_seconds)
        asyncio.get_running_loop().call_later(self._drain_seconds, self._stop)

    def _stop(self) -> None:
        self.should_exit = True
