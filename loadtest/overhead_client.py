"""The other end of `http_overhead`: sends recommendations from a process of its own and says how long each took.

One JSON object a line on stdin (``users``, ``at_once``), one on stdout (``milliseconds`` per call, ``seconds`` of all,
``bad`` answers). Plain sockets, opened before the first call: a comfortable client takes longer than what is measured.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator

ASKED = 10
HEAD = b"POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "


class Connection:
    """One kept-alive connection to the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def close(self) -> None:
        """Hang up: the server would, while the engine alone is asked."""
        self._writer.close()

    async def recommend(self, user: str) -> bool:
        """Whether the answer is a full one: 200, not degraded, as many items as asked."""
        body = json.dumps({"user_id": user, "num_results": ASKED}).encode()
        self._writer.write(HEAD + f"{len(body)}\r\n\r\n".encode() + body)
        status, *rows = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        length = next(int(row.partition(":")[2]) for row in rows if row.startswith("content-length:"))
        answer = json.loads(await self._reader.readexactly(length))
        return " 200 " in f"{status} " and not answer["degraded"] and len(answer["items"]) == ASKED


async def send(connections: list[Connection], users: list[str]) -> dict[str, object]:
    """Each connection asks for the next user as soon as it is answered."""
    waiting: Iterator[str] = iter(users)
    milliseconds: list[float] = []
    bad = 0

    async def one(connection: Connection) -> None:
        nonlocal bad
        for user in waiting:
            start = time.perf_counter()
            bad += not await connection.recommend(user)
            milliseconds.append(1000 * (time.perf_counter() - start))

    start = time.perf_counter()
    await asyncio.gather(*map(one, connections))
    return {"milliseconds": milliseconds, "seconds": time.perf_counter() - start, "bad": bad}


async def main(port: int) -> None:
    """Answer line after line, until stdin ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        connections = [Connection(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(asked["at_once"])]
        print(json.dumps(await send(connections, asked["users"])), flush=True)
        for connection in connections:
            connection.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
