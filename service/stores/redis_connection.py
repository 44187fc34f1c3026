"""Connections to Redis with honest limits: a bounded pool that waits, socket timeouts, no hidden retries.

redis-py's defaults answer a hung server after more than 40 s (ten retries of 5 s) and refuse the 101st concurrent
caller; both are set here, once. The URL says what kind of Redis it is; callers cannot tell the kinds apart:

    redis://[user:password@]host:port/db                                   one server (rediss:// with TLS)
    redis+sentinel://[user:password@]host:port,host:port/service[/db]      the service's master, found by Sentinels
    redis+cluster://[user:password@]host:port,host:port                    a cluster, entered by any of these nodes

Every failure leaves as a `StorageError`.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError

from service.errors import SettingsError, StorageError, StorageFullError

MAX_CONNECTIONS = 32
CLUSTER_CONNECTIONS = 256  # per node; its pool refuses instead of waiting, so it must be more than can be at work
SENTINEL_SECONDS = 0.5  # a Sentinel that does not answer must leave time for the next one

_FORM = (
    "redis_url is not of the form redis://[user:password@]host:port/database, "
    "redis+sentinel://host:port,host:port/service or redis+cluster://host:port,host:port"
)
_MANY = re.compile(
    r"redis(?P<tls>s?)\+(?P<kind>sentinel|cluster)://(?:(?P<login>[^/]*)@)?(?P<hosts>[^/@?]+)(?P<rest>.*)"
)
_REST = re.compile(r"(?:/(?P<service>[^/?]+))?(?:/(?P<db>\d+))?/?(?:\?sentinel_password=(?P<password>[^&]*))?")


class BlockingSentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the current master; the 33rd caller waits, as `BlockingConnectionPool` has it."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections; at the end also those to the Sentinels, which redis-py forgets."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


class BoundedCluster(RedisCluster):
    """A cluster whose 33rd concurrent command waits: its own pools would open a connection for each at once."""

    def __init__(self, *, patience_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._entries: list[ClusterNode] = options["startup_nodes"]
        self._places, self._entrance = asyncio.Semaphore(MAX_CONNECTIONS), asyncio.Lock()
        self._patience_seconds, self._entered = patience_seconds, False

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """One command, once there is a place for it."""
        async with asyncio.timeout(self._patience_seconds):
            await self._places.acquire()
        try:
            if self._entered:
                return await super().execute_command(*args, **kwargs)
            async with self._entrance:  # while a cold client learns the nodes, redis-py cuts its other connections
                answer = await super().execute_command(*args, **kwargs)
                self._entered = True
                return answer
        finally:
            self._places.release()

    async def aclose(self) -> None:
        """Close all connections, also those by which the cluster was entered, which redis-py forgets."""
        await super().aclose()
        for node in self._entries:
            await node.disconnect()


@dataclass(frozen=True, slots=True)
class _Place:
    """A parsed URL of several hosts."""

    kind: str
    hosts: tuple[tuple[str, int], ...]
    service: str
    login: dict[str, Any]
    sentinel_password: str | None


def connect(url: str, *, timeout_seconds: float) -> Any:
    """A client whose every operation, waiting for a connection included, ends after about ``timeout_seconds``.

    It is a `redis.asyncio.Redis` or `RedisCluster`; both have the commands the stores use.

    Raises:
        SettingsError: the URL is not one.
    """
    place = _parse(url)
    if place is None:
        return _single(url, timeout_seconds)
    return _cluster(place, timeout_seconds) if place.kind == "cluster" else _sentinel(place, timeout_seconds)


@contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Turn what Redis or the network raises into a `StorageError` that names the action."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error):
            raise StorageFullError(f"{action}: Redis is at its maxmemory; give it more or delete keys") from error
        raise StorageError(f"{action}: {reason}") from error


def _options(timeout_seconds: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
        "encoding_errors": "replace",  # what a backend wrote badly is an unknown item, not a failure
        "protocol": 2,
    }


def _single(url: str, timeout_seconds: float) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url, max_connections=MAX_CONNECTIONS, timeout=timeout_seconds, **_options(timeout_seconds)
        )
        pool.make_connection()  # type: ignore[no-untyped-call]  # options in the URL are looked at only here
    except (TypeError, ValueError):
        # the reason is kept back: it quotes the URL, password and all
        raise SettingsError(_FORM) from None
    return Redis.from_pool(pool)


def _sentinel(place: _Place, timeout_seconds: float) -> Redis:
    patience = min(timeout_seconds, SENTINEL_SECONDS)
    asked: dict[str, Any] = {"socket_timeout": patience, "socket_connect_timeout": patience, "protocol": 2}
    asked |= {"retry": Retry(NoBackoff(), 0), "password": place.sentinel_password}
    sentinel = Sentinel(place.hosts, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    pool = BlockingSentinelPool(  # type: ignore[no-untyped-call]
        place.service,
        sentinel,
        max_connections=MAX_CONNECTIONS,
        timeout=timeout_seconds,
        **_options(timeout_seconds),
        **place.login,
    )
    return Redis.from_pool(pool)


def _cluster(place: _Place, timeout_seconds: float) -> RedisCluster:
    nodes = [ClusterNode(host, port) for host, port in place.hosts]
    options = _options(timeout_seconds) | place.login
    return BoundedCluster(
        patience_seconds=timeout_seconds, startup_nodes=nodes, max_connections=CLUSTER_CONNECTIONS, **options
    )


def _parse(url: str) -> _Place | None:
    """The parts of a Sentinel or cluster URL; None for one server's."""
    if "+" not in url.partition("://")[0]:
        return None
    found = _MANY.fullmatch(url)
    rest = _REST.fullmatch(found["rest"]) if found else None
    if found is None or rest is None or (found["kind"] == "sentinel") != bool(rest["service"]):
        raise SettingsError(_FORM)
    login: dict[str, Any] = {"ssl": True} if found["tls"] else {}
    user, _, password = (unquote(part) for part in (found["login"] or "").partition(":"))
    login |= {"username": user or None, "password": password or None}
    if rest["db"]:
        login["db"] = int(rest["db"])
    hosts = tuple(_host(text) for text in found["hosts"].split(","))
    return _Place(found["kind"], hosts, rest["service"] or "", login, rest["password"] and unquote(rest["password"]))


def _host(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise SettingsError(_FORM)
    return host.strip("[]"), int(port)
