"""The engine's own process: one loop that takes messages in, steps vLLM and sends answers back.

vLLM would start up to three processes of its own, each importing it anew; one is enough where one worker is, and the
API process never imports vLLM at all. This one lives as long as the socket to its parent: when that closes, it ends.
Started by `vllm_engine`, as ``python -m service.engine.vllm_process <socket>``.
"""

import dataclasses
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from service.engine.base import EngineOptions
from service.engine.channel import Channel, Message
from service.engine.wire import decode_delta, decode_tokens, tensor_bytes
from service.errors import StartupError
from service.model.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from service.engine.vllm_runner import VllmRunner


class EngineLoop:
    """Serves one parent until it hangs up."""

    def __init__(self, runner: "VllmRunner", channel: Channel, inbox: "queue.SimpleQueue[Message | None]") -> None:
        self._runner = runner
        self._channel = channel
        self._inbox = inbox
        self._taken: dict[str, float] = {}  # when requests came in, by `time.monotonic`, which parent and child share

    def run(self) -> None:
        """Step while there is work, else wait for a message; ends with the parent's last one."""
        while self._take_messages():
            for request_id, encoded in self._runner.step():
                now = time.monotonic()
                times = [self._taken.pop(request_id, now), now]  # one aborted meanwhile has none
                self._channel.send({"answer": request_id, "data": tensor_bytes(encoded), "times": times})

    def _take_messages(self) -> bool:
        for message in self._messages():
            if message is None:
                return False
            self._handle(message)
        return True

    def _messages(self) -> Iterator[Message | None]:
        if not self._runner.busy:
            yield self._inbox.get()
        while not self._inbox.empty():
            yield self._inbox.get()

    def _handle(self, message: Message) -> None:
        if "request" in message:
            self._add(message)
        elif "abort" in message:
            self._runner.abort([message["abort"]])
            self._taken.pop(message["abort"], None)
        elif "statistics" in message:
            self._channel.send({"done": message["id"], **dataclasses.asdict(self._runner.statistics())})
        else:
            self._call(message)

    def _add(self, message: Message) -> None:
        try:
            self._runner.add(message["id"], message["prompt"], message["request"])
        except ValueError as error:
            self._channel.send({"refused": message["id"], "detail": str(error)})
        else:
            self._taken[message["id"]] = time.monotonic()

    def _call(self, message: Message) -> None:
        """A change between two steps; one that does not fit is the caller's fault and harms nobody else."""
        try:
            if "delta" in message:
                self._runner.update_catalog(decode_delta(message["delta"]))
            else:
                self._runner.write_tokens(decode_tokens(message["tokens"]))
        except ValueError as error:
            self._channel.send({"refused": message["id"], "detail": str(error)})
        else:
            self._channel.send({"done": message["id"]})


def engine_environment(options: EngineOptions) -> Mapping[str, str]:
    """What vLLM, torch and OpenMP read from the environment at import; what the user has set goes before most of it."""
    wanted = {
        "VLLM_PLUGINS": "groundrec",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(options.kv_cache_gib))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(options.omp_threads),
        "OMP_WAIT_POLICY": "passive",
        "PYTHONWARNINGS": "ignore",
    }
    return {**wanted, **os.environ, **_compile_cache(options)}


def _compile_cache(options: EngineOptions) -> dict[str, str]:
    if options.compile_cache is None:
        return {}
    return {
        "VLLM_CACHE_ROOT": options.compile_cache,
        "VLLM_USE_AOT_COMPILE": "0",  # what it saves did not load again on CPU; inductor's own cache does
        # torch sets this for itself when it is imported here, so it cannot be left to whoever set it
        "TORCHINDUCTOR_CACHE_DIR": f"{options.compile_cache}/inductor",
    }


def main(descriptor: int) -> int:
    """Start the engine that the first message describes; returns the exit code."""
    channel = Channel(socket.socket(fileno=descriptor))
    inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    first = channel.receive()
    if first is None:
        return 0
    started = threading.Event()
    threading.Thread(target=_read, args=(channel, inbox, started), daemon=True).start()
    try:
        runner = _start(first)
    except Exception as error:
        foreseen = isinstance(error, StartupError)
        channel.send({"failed": type(error).__name__, "detail": str(error), "foreseen": foreseen})
        if not foreseen:
            raise
        return 2
    started.set()
    channel.send({"ready": True})
    EngineLoop(runner, channel, inbox).run()
    runner.close()
    return 0


def _start(first: Message) -> "VllmRunner":
    checkpoint = open_checkpoint(Path(first["checkpoint"]), verify=False)
    # imported only now, so that a parent that hangs up during the seconds this takes is noticed meanwhile
    from service.engine.vllm_runner import VllmRunner

    return VllmRunner(checkpoint, EngineOptions(**first["options"]))


def _read(channel: Channel, inbox: "queue.SimpleQueue[Message | None]", started: threading.Event) -> None:
    while (message := channel.receive()) is not None:
        inbox.put(message)
    if not started.is_set():
        os._exit(1)  # nobody waits for this engine any more, and importing and compiling would go on for a minute
    inbox.put(None)


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)  # everything is closed; the interpreter's own end waits for ever on threads of torch's distributed
