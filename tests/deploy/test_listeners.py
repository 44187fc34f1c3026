"""The command that lists what a running service listens on tells loopback from the world."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "listening_sockets.py"
# A parent whose child listens, as the engine's process does below the service's.
LISTENING = """
import socket, subprocess, sys
if len(sys.argv) == 2:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "", sys.argv[1]], stdout=subprocess.PIPE, text=True)
    print(child.stdout.readline().strip(), flush=True)
    sys.stdin.read()
    child.kill()
    child.wait()
"""
CHILD = """
import socket, time
sockets = [socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
           for address in ADDRESSES]
print(*(each.getsockname()[1] for each in sockets), flush=True)
time.sleep(60)
"""


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[tuple[int, list[int]]]:
    child = CHILD.replace("ADDRESSES", repr(request.param))
    command = [sys.executable, "-c", LISTENING, child]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    yield parent.pid, [int(port) for port in parent.stdout.readline().split()]
    parent.communicate("")


def listed(pid: int, port: int) -> tuple[int, list[str]]:
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), str(pid), str(port)], capture_output=True, text=True, check=False
    )
    assert not answer.stderr
    return answer.returncode, answer.stdout.split()


@pytest.mark.parametrize("service", [["127.0.0.1", "::1"]], indirect=True)
def test_loopback_listeners_of_a_child_are_listed_and_accepted(service: tuple[int, list[int]]) -> None:
    pid, (four, six) = service
    code, lines = listed(pid, 8000)
    assert code == 0
    assert sorted(lines) == sorted([f"127.0.0.1:{four}", f"::1:{six}"])


@pytest.mark.parametrize("service", [["0.0.0.0", "127.0.0.1"]], indirect=True)
def test_a_listener_beyond_loopback_fails_unless_it_is_the_services_port(service: tuple[int, list[int]]) -> None:
    pid, (open_port, _) = service
    assert listed(pid, 8000)[0] == 1
    assert listed(pid, open_port)[0] == 0
