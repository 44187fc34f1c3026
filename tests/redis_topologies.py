"""Real Redis beyond one server: a master with a replica under Sentinels, and a cluster of three nodes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.redis_server import RedisServer, free_port

SERVICE = "groundrec"
DOWN_AFTER_MS = 1000
SLOTS = 16384
PATIENCE_SECONDS = 30


class Watched:
    """A master and its replica, watched by three Sentinels."""

    def __init__(self, folder: Path) -> None:
        durable = ("--appendonly", "yes", "--save", "")
        self.master = RedisServer(_made(folder / "master"), *durable).start()
        follow = ("--replicaof", "127.0.0.1", str(self.master.port))
        self.replica = RedisServer(_made(folder / "replica"), *durable, *follow).start()
        self.sentinels = [_sentinel(folder / f"sentinel-{n}", self.master.port) for n in range(3)]
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/{SERVICE}/0"
        _until(self._all_know_each_other)

    def _all_know_each_other(self) -> bool:
        for sentinel in self.sentinels:
            with redis.Redis(port=sentinel.port, decode_responses=True) as client:
                state = client.sentinel_master(SERVICE)
            if state["num-other-sentinels"] != 2 or state["num-slaves"] != 1:
                return False
        with redis.Redis(port=self.replica.port) as client:
            return bool(client.info("replication")["master_link_status"] == "up")

    def wait_for_failover(self) -> None:
        """Return once every Sentinel names the replica as master."""

        def failed_over() -> bool:
            for sentinel in self.sentinels:
                with redis.Redis(port=sentinel.port, decode_responses=True) as client:
                    if client.sentinel_get_master_addr_by_name(SERVICE)[1] != self.replica.port:
                        return False
            with redis.Redis(port=self.replica.port) as client:
                return bool(client.info("replication")["role"] == "master")

        _until(failed_over)

    def kill(self) -> None:
        for server in (*self.sentinels, self.master, self.replica):
            server.kill()


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    made = Watched(folder)
    try:
        yield made
    finally:
        made.kill()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A cluster of three masters; its URL names one node only."""
    nodes = [
        RedisServer(
            _made(folder / f"node-{n}"), "--cluster-enabled", "yes", "--appendonly", "yes", port=_low_port()
        ).start()
        for n in range(3)
    ]
    try:
        clients: list[Any] = [redis.Redis(port=node.port, decode_responses=True) for node in nodes]
        for number, client in enumerate(clients):
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3
            client.execute_command("CLUSTER", "ADDSLOTS", *range(first, last))
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        _until(lambda: all("cluster_state:ok" in _cluster_info(client) for client in clients))
        for client in clients:
            client.close()
        yield f"redis+cluster://127.0.0.1:{nodes[0].port}"
    finally:
        for node in nodes:
            node.kill()


def _cluster_info(client: Any) -> str:
    told = client.execute_command("CLUSTER", "INFO")
    known = client.execute_command("CLUSTER", "NODES")
    text = "\n".join(f"{name}:{value}" for name, value in told.items()) if isinstance(told, dict) else str(told)
    return text if len(known) == 3 or str(known).count("connected") >= 3 else ""


def _sentinel(folder: Path, master_port: int) -> RedisServer:
    config = _made(folder) / "sentinel.conf"
    port = free_port()
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} 2\n"
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {SERVICE} 5000\n"
    )
    return RedisServer(folder, port=port, config=config).start()


def _low_port() -> int:
    """A cluster node also listens 10,000 above its port."""
    while (port := free_port()) > 55_000:
        pass
    return port


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if condition():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < deadline, "the servers did not come together"
        time.sleep(0.1)
