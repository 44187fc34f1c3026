"""When a call is repeated, and what its answer means: the part that both clients share and that needs no network.

A call that cannot happen twice is repeated only if the service says that nothing was started (it was full, or the quota
was used up) or if no connection came about. A pause that would not leave time before the deadline is not begun.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from service.client.calls import Call, problem
from service.errors import (
    NotAllowedError,
    ProblemError,
    RefusedError,
    ThrottledError,
    UnavailableError,
    UnreachableError,
)

Answer = TypeVar("Answer")

FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 5.0
UNSTARTED = {"overloaded", "quota-exceeded"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer (``error`` is None) or a failure, and whether the service cannot have done anything."""

    answer: Any = None
    error: ProblemError | UnreachableError | None = None
    unstarted: bool = False


def of_response(call: Call[Any], response: httpx.Response) -> Outcome:
    """What a response means."""
    document = _document(response)
    if response.is_success and document is not None:
        return Outcome(call.read(document))
    error = problem_error(response, document if isinstance(document, dict) else {})
    return Outcome(error=error, unstarted=error.problem in UNSTARTED)


def of_failure(error: httpx.TransportError) -> Outcome:
    """What a missing response means."""
    unstarted = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
    told = str(error) or type(error).__name__
    return Outcome(error=UnreachableError(f"no answer: {told}"), unstarted=unstarted)


def pause(
    call: Call[Any], outcome: Outcome, attempt: int, left: float, jitter: Callable[[], float] = random.random
) -> float | None:
    """Seconds to wait before the next try, counted from 0; None if there shall be none."""
    error = outcome.error
    passing = isinstance(error, (ThrottledError, UnavailableError, UnreachableError))
    if error is None or not passing or not (call.repeatable or outcome.unstarted):
        return None
    asked = error.retry_after_seconds if isinstance(error, ProblemError) else None
    seconds = min(FIRST_PAUSE_SECONDS * 2**attempt, MAX_PAUSE_SECONDS) * (0.5 + jitter())
    seconds = max(asked or 0.0, seconds)
    return seconds if seconds < left else None


def problem_error(response: httpx.Response, document: dict[str, Any]) -> ProblemError:
    """The typed exception of a refusal."""
    status = response.status_code
    kind, detail, request_id, pointers = problem(status, document)
    kinds = {401: NotAllowedError, 403: NotAllowedError, 429: ThrottledError}
    made = kinds.get(status, RefusedError if status < 500 else UnavailableError)
    retry = response.headers.get("retry-after", "")
    return made(
        status,
        kind,
        detail or response.reason_phrase,
        request_id=request_id or response.headers.get("x-request-id", ""),
        pointers=pointers,
        retry_after_seconds=float(retry) if retry.isdigit() else None,
    )


def _document(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
