"""Which sockets a process and its children listen on, read from /proc, and who can reach them.

usage: python deploy/listening_sockets.py PID PORT     exit 1 when anything but PORT listens beyond loopback

Standard library only, so that it can be run beside a service anywhere on Linux.
"""

import ipaddress
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket."""

    address: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


def tree(pid: int) -> Iterator[int]:
    """``pid`` and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def listeners_of(pid: int) -> set[Listener]:
    """The TCP sockets that ``pid`` and its children listen on."""
    inodes = {inode for process in tree(pid) for inode in _socket_inodes(process)}
    rows = (row for name in ("tcp", "tcp6") for row in _rows(Path(f"/proc/{pid}/net/{name}")))
    return {Listener(address, port) for address, port, inode in rows if inode in inodes}


def foreign_listeners(pid: int, port: int) -> set[Listener]:
    """Those that others can reach, the service's own ``port`` apart."""
    return {each for each in listeners_of(pid) if not each.loopback and each.port != port}


def _socket_inodes(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # closed in the meantime
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _rows(table: Path) -> Iterator[tuple[str, int, str]]:
    for line in table.read_text().splitlines()[1:] if table.exists() else []:
        fields = line.split()
        if fields[3] != LISTEN:
            continue
        address, _, port = fields[1].partition(":")
        yield _address(address), int(port, 16), fields[9]


def _address(text: str) -> str:
    """The kernel prints 32-bit words in the machine's own order (little-endian here)."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


if __name__ == "__main__":
    pid, port = int(sys.argv[1]), int(sys.argv[2])
    for listener in sorted(listeners_of(pid), key=lambda each: each.port):
        print(f"{listener.address}:{listener.port}")
    sys.exit(1 if foreign_listeners(pid, port) else 0)
