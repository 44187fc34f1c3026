"""The real application behind a real port, in a thread of this process: for what needs a socket, such as a browser."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from service.app import Parts, open_service
from service.server import bind, server_config
from service.settings import Settings

START_SECONDS = 60


class LiveService(threading.Thread):
    """Started by `start`; `url` is valid once `wait` returned."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        super().__init__(name="live-service")
        self._settings, self._parts = settings, parts
        self._listener = bind("127.0.0.1", 0)
        self._up = threading.Event()
        self._server: uvicorn.Server | None = None
        self._failure: BaseException | None = None
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._up.set()

    def wait(self) -> None:
        assert self._up.wait(START_SECONDS), "the service did not start"
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        if self._server:
            self._server.should_exit = True
        self.join()
        self._listener.close()
        if self._failure:
            raise self._failure

    async def _serve(self) -> None:
        async with open_service(self._settings, self._parts) as service:
            self._server = uvicorn.Server(server_config(service, self._settings))
            self._listener.listen()
            self._up.set()
            await self._server.serve(sockets=[self._listener])


@contextmanager
def live_service(settings: Settings, parts: Parts) -> Iterator[str]:
    """The address of a started service."""
    service = LiveService(settings, parts)
    service.start()
    try:
        service.wait()
        yield service.url
    finally:
        service.stop()
