"""What a contender is, what it is asked and what it answers; everything crosses a pipe as JSON.

A host is what one child process holds: an engine, the contenders that use it, and facts it can find out about it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from service.model.semantic_ids import Sid


@dataclass(frozen=True, slots=True)
class Batch:
    """Users to answer at once.

    ``legal_share`` below 1 lets a request return that share of the SIDs only (contenders without filters refuse it);
    ``legal_key`` names that filter; ``keep_cache`` leaves cached prompts of earlier runs in place.
    """

    prompts: Sequence[Sequence[int]]
    beam: int
    legal_share: float = 1.0
    legal_key: str = ""
    keep_cache: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """SIDs best first and their scores; codes of -1 where a token was no SID token of its level."""

    sids: tuple[Sid, ...]
    scores: tuple[float, ...]


class Contender(Protocol):
    """Answers batches. Only `run` is measured."""

    def prepare(self, batch: Batch) -> None:
        """Whatever must precede a run but is no part of a request."""
        ...

    def run(self, batch: Batch) -> list[Answer]:
        """One answer per prompt; empty lists from those that answer nothing."""
        ...


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a child is told at its start."""

    kind: str
    checkpoint: str
    compiled: bool
    dtype: str
    threads: int
    max_users: int
    max_tokens: int
    kv_gib: float
    device: str = "cpu"
    prefill_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Host:
    """Contenders by name, facts by name (keyword arguments in, JSON out), and how to end."""

    contenders: Mapping[str, Contender]
    facts: Mapping[str, Callable[..., dict[str, Any]]] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


HOSTS: Mapping[str, str] = {
    "ours": "loadtest.engine.vllm_ours",
    "plain": "loadtest.engine.vllm_plain",
    "torch": "loadtest.engine.torch_host",
    "served": "loadtest.engine.served",
    "constraint": "loadtest.engine.constraint",
}

KIND_OF: Mapping[str, str] = {
    "ours": "ours",
    "vllm_beam": "plain",
    "one_token": "plain",
    "line": "plain",
    "hf_generate": "torch",
    "torch_loop": "torch",
}
