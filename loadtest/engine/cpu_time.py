"""Process CPU time of a process and everything below it: what a request cost, whoever else uses the cores.

Linux only: each process has a CPU clock whose number follows from its id, exact to the nanosecond and including
threads that have ended.
"""

import os
import time
from pathlib import Path

_CPUCLOCK_SCHED = 2


def tree_cpu_seconds(pid: int | None = None) -> float:
    """CPU seconds of process ``pid`` (default: this one) and its live descendants."""
    root = os.getpid() if pid is None else pid
    return sum(_cpu_seconds(member) for member in _tree(root))


def tree_rss_mib(pid: int | None = None) -> float:
    """Resident memory of the same processes, in MiB; shared pages count once per process."""
    root = os.getpid() if pid is None else pid
    return sum(_rss_mib(member) for member in _tree(root))


def _tree(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        members += _children(member)
    return members


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass  # it has just ended
    return found


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        return 0.0


def _rss_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGESIZE") / 2**20
