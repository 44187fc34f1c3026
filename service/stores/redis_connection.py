"""Connections to Redis with honest limits: a bounded pool that waits, socket timeouts, no hidden retries.

redis-py's defaults answer a hung server after more than 40 s (ten retries of 5 s) and refuse the 101st concurrent
caller; both are set here, once. Every failure leaves as a `StorageError`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from service.errors import SettingsError, StorageError

MAX_CONNECTIONS = 32


def connect(url: str, *, timeout_seconds: float) -> Redis:
    """A client whose every operation, waiting for a connection included, ends after about ``timeout_seconds``.

    Raises:
        SettingsError: the URL is not one.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_seconds,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            encoding_errors="replace",  # what a backend wrote badly is an unknown item, not a failure
            protocol=2,
        )
        pool.make_connection()  # type: ignore[no-untyped-call]  # options in the URL are looked at only here
    except (TypeError, ValueError):
        # the reason is kept back: it quotes the URL, password and all
        raise SettingsError("redis_url is not of the form redis://[user:password@]host:port/database") from None
    return Redis.from_pool(pool)


@contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Turn what Redis or the network raises into a `StorageError` that names the action."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise StorageError(f"{action}: {reason}") from error
