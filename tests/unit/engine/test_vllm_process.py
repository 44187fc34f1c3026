"""The engine process serves, refuses and forgets as told, whatever stands behind it; here a runner of a few lines."""

import queue
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from service.engine.base import CatalogDelta, EngineOptions, EngineStatistics, TokenRow
from service.engine.channel import Channel, Message
from service.engine.vllm_process import EngineLoop, engine_environment
from service.engine.wire import encode_delta, encode_tokens


class FakeRunner:
    """Ends each request at the second step after it came in."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}
        self.aborted: list[str] = []
        self.steps = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting)

    def add(self, request_id: str, prompt_ids: Sequence[int], plain: Mapping[str, Any]) -> None:
        if len(prompt_ids) > 3:
            raise ValueError("the prompt is too long")
        self.waiting[request_id] = 2

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.waiting.pop(request_id, None)

    def step(self) -> list[tuple[str, Tensor]]:
        self.steps += 1
        self.waiting = {request_id: left - 1 for request_id, left in self.waiting.items()}
        ended = [request_id for request_id, left in self.waiting.items() if not left]
        for request_id in ended:
            del self.waiting[request_id]
        return [(request_id, torch.tensor([float(self.steps)])) for request_id in ended]

    def update_catalog(self, delta: CatalogDelta) -> None:
        if delta.previous:
            raise ValueError("does not follow 0")

    def write_tokens(self, rows: Sequence[TokenRow]) -> None:
        self.rows = rows

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(len(self.waiting), 7, 0, 0, 0, 0)


class Session:
    """A loop in a thread; what it sends is read here."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.runner = FakeRunner()
        self.inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.parent = Channel(ours)
        self.child = Channel(theirs)
        loop = EngineLoop(self.runner, self.child, self.inbox)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=loop.run)

    def run(self, *messages: Message) -> None:
        """Give the messages before the loop looks, so that the order of events is fixed; then hang up."""
        for message in messages:
            self.inbox.put(message)
        self.thread.start()

    def end(self) -> None:
        self.inbox.put(None)
        self.thread.join(5)
        assert not self.thread.is_alive()
        self.parent.close()
        self.child.close()


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session()
    yield session
    session.end()


def request(name: str, tokens: int = 3) -> Message:
    return {"id": name, "prompt": [1] * tokens, "request": {}}


def test_requests_that_wait_together_are_answered_together(session: Session) -> None:
    session.run(request("a"), request("b"))
    answers = [session.parent.receive() for _ in range(2)]
    assert [answer and answer["answer"] for answer in answers] == ["a", "b"]
    assert session.runner.steps == 2


def test_an_aborted_request_is_never_answered(session: Session) -> None:
    session.run(request("gone"), {"abort": "gone"}, request("kept"))
    answer = session.parent.receive()
    assert answer is not None and answer["answer"] == "kept"
    assert session.runner.aborted == ["gone"] and not session.runner.busy


def test_what_does_not_fit_is_refused_by_name_and_harms_nobody(session: Session) -> None:
    session.run(
        request("long", tokens=4),
        {"id": "delta", "delta": encode_delta(CatalogDelta(9, 8))},
        request("short"),
    )
    answers = [session.parent.receive() or {} for _ in range(3)]
    assert [answer.get("refused") for answer in answers] == ["long", "delta", None]
    assert answers[0]["detail"] == "the prompt is too long"
    assert answers[2]["answer"] == "short"


def test_changes_and_questions_are_confirmed(session: Session) -> None:
    session.run(
        {"id": "delta", "delta": encode_delta(CatalogDelta(1, 0))},
        {"id": "rows", "tokens": encode_tokens([TokenRow(0, 1, (0.5,), (1.0,))])},
        {"id": "held", "statistics": True},
    )
    answers = [session.parent.receive() or {} for _ in range(3)]
    assert [answer["done"] for answer in answers] == ["delta", "rows", "held"]
    assert answers[2]["free_blocks"] == 7
    assert session.runner.rows == [TokenRow(0, 1, (0.5,), (1.0,))]


def test_what_the_user_set_in_the_environment_goes_before_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/where/torch/put/it")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = engine_environment(EngineOptions("float32", 8, 0.25, 3, 1.0, compile_cache="/somewhere"))
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["VLLM_CACHE_ROOT"] == "/somewhere"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/somewhere/inductor"
