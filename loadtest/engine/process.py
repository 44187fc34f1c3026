"""The parent's end of a child: starts it, sends commands, and says plainly when it died and where its log lies."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.engine.contender import Answer, Batch, HostSpec
from service.errors import GroundrecError

STOP_SECONDS = 30


class ChildError(GroundrecError):
    """A child died or could not do what it was told; the text names its log."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: CPU and wall seconds of the whole batch, resident MiB after it, and what was answered."""

    cpu_s: float
    wall_s: float
    rss_mib: float
    answers: tuple[Answer, ...]


class Child:
    """A running child; use as a context manager."""

    def __init__(self, spec: HostSpec, log: Path, module: str = "loadtest.engine.child") -> None:
        self._log = log
        self._stderr = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=child_environment(spec),
        )
        self._send(asdict(spec))
        self.start: dict[str, Any] | None = None

    def wait_ready(self) -> "Child":
        """Block until the host is built.

        Raises:
            ChildError: it never was.
        """
        if self.start is None:
            self.start = self._receive()
        return self

    def run(self, contender: str, batch: Batch) -> Run:
        """Let a contender answer a batch.

        Raises:
            ChildError: it failed.
        """
        reply = self._ask({"do": "run", "contender": contender, "batch": batch.plain()})
        answers = tuple(Answer(tuple(map(tuple, sids)), tuple(scores)) for sids, scores in reply["answers"])
        return Run(reply["cpu_s"], reply["wall_s"], reply["rss_mib"], answers)

    def fact(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Ask for a fact.

        Raises:
            ChildError: it could not be found out.
        """
        value: dict[str, Any] = self._ask({"do": "fact", "name": name, "arguments": arguments})["value"]
        return value

    def close(self) -> None:
        """Stop it, by force if it does not listen."""
        try:
            self._send({"do": "stop"})
            self._process.wait(STOP_SECONDS)
        except (ChildError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with suppress(BrokenPipeError):  # what a dead child never read
                if stream is not None:
                    stream.close()

    def __enter__(self) -> "Child":
        try:
            return self.wait_ready()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        self.wait_ready()
        self._send(command)
        return self._receive()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildError(self._obituary()) from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildError(self._obituary())
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise ChildError(f"{message['error']} (see {self._log})")
        return message

    def _obituary(self) -> str:
        code = self._process.wait()
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"a benchmark child ended with code {code}: {''.join(last)[:300]} (see {self._log})"


def child_environment(spec: HostSpec) -> dict[str, str]:
    """The environment of a child: threads, one process per vLLM engine, our plug-in for none but ours."""
    wanted = {
        "OMP_NUM_THREADS": str(spec.threads),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(spec.kv_gib))),
        "VLLM_PLUGINS": "" if spec.kind == "plain" else "groundrec",
    }
    if spec.kind in {"ours", "plain"}:
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return {**os.environ, **wanted}
