"""The shell scripts a user meets first: each says in one line what is wrong, before anything long begins."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*sorted((ROOT / "deploy").glob("*.sh")), ROOT / "tests" / "run.sh", ROOT / ".ci" / "run"]
COMMANDS = [
    "deploy/quickstart.sh",
    "deploy/venv.sh",
    "deploy/lock.sh",
    "deploy/audit.sh",
    "deploy/promtool.sh",
    "deploy/reproduce-image.sh",
]


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *arguments],
        env={**os.environ, "GROUNDREC_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the scripts need of the repository, free to be changed."""
    root = tmp_path / "clone"
    shutil.copytree(ROOT / "deploy", root / "deploy")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("script", [*COMMANDS, "tests/run.sh", ".ci/run"])
def test_scripts_a_user_starts_are_executable(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_printed_and_succeeds(command: str) -> None:
    answer = run(ROOT / command, "--help")
    assert answer.returncode == 0
    assert answer.stdout.startswith("usage:")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_named_and_refused(command: str) -> None:
    answer = run(ROOT / command, "--frobnicate")
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "--frobnicate" in answer.stderr


@pytest.mark.parametrize("arguments", [["--port"], ["--port", "0"], ["--port", "70000"], ["--recipe", "../x"]])
def test_a_bad_value_is_refused_in_one_line(arguments: list[str]) -> None:
    answer = run(ROOT / "deploy/quickstart.sh", *arguments)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1


def test_a_busy_port_ends_the_quickstart_before_any_installation(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        started = time.monotonic()
        answer = run(ROOT / "deploy/quickstart.sh", "--port", port, XDG_CACHE_HOME=str(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert f"port {port}" in answer.stderr
    assert time.monotonic() - started < 10
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("version", "words"), [("3.9", "too old"), ("3.10", "too old"), ("3.13", "locks are for")])
def test_a_python_of_another_version_is_refused(tmp_path: Path, version: str, words: str) -> None:
    fake = tmp_path / "python3"
    fake.write_text(f"#!/bin/sh\ncase $2 in *version_info*) echo {version} ;; esac\n")
    fake.chmod(0o755)
    shutil.copy(fake, tmp_path / "python3.11")
    path = f"{tmp_path}:{os.environ['PATH']}"
    answer = run(ROOT / "deploy/venv.sh", "demo-cpu", PATH=path, GROUNDREC_PYTHON="", XDG_CACHE_HOME=str(tmp_path))
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert version in answer.stderr
    assert words in answer.stderr


def test_a_python_without_venv_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\ncase $2 in *version_info*) echo 3.11 ;; *venv*) exit 1 ;; esac\n")
    fake.chmod(0o755)
    answer = run(ROOT / "deploy/venv.sh", "demo-cpu", GROUNDREC_PYTHON=str(fake), XDG_CACHE_HOME=str(tmp_path))
    assert answer.returncode == 2
    assert "no venv module" in answer.stderr


def test_an_unknown_lock_is_refused() -> None:
    assert run(ROOT / "deploy/venv.sh", "prod").returncode == 2


def test_the_locks_fit_the_project() -> None:
    answer = run(ROOT / "deploy/lock.sh", "--check")
    assert answer.returncode == 0, answer.stderr


def test_a_changed_dependency_makes_every_lock_stale(clone: Path) -> None:
    pyproject = clone / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"fastapi>=', '"fastapi>0,>='))
    answer = run(clone / "deploy/lock.sh", "--check")
    assert answer.returncode == 1
    assert answer.stderr.count("does not match the dependencies in pyproject.toml: run deploy/lock.sh") == 4


def test_a_changed_tool_setting_leaves_the_locks_fresh(clone: Path) -> None:
    pyproject = clone / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("line-length = 120", "line-length = 100"))
    assert run(clone / "deploy/lock.sh", "--check").returncode == 0


@pytest.mark.parametrize("defect", ["edited", "missing"])
def test_a_lock_that_was_edited_or_lost_is_noticed(clone: Path, defect: str) -> None:
    lock = clone / "deploy/locks/demo-cpu.txt"
    if defect == "missing":
        lock.unlink()
    else:
        lock.write_text(lock.read_text() + "left-pad==1.0\n")
    answer = run(clone / "deploy/lock.sh", "--check")
    assert answer.returncode == 1
    assert "demo-cpu.txt" in answer.stderr
    assert defect in answer.stderr


# The quickstart's own work with the real Redis; the trainer and the service are stand-ins of a few lines.

STAND_IN = """\
import http.server, os, pathlib, signal, sys

print(*sys.argv[1:], file=open(os.environ["CALLS"], "a"))
option = lambda name: sys.argv[sys.argv.index(name) + 1]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass

def stopped(*_):
    import socket
    host, port = option("--redis-url").removeprefix("redis://").removesuffix("/0").split(":")
    socket.create_connection((host, int(port)), 2).close()
    print("stopped while redis was up", file=open(os.environ["CALLS"], "a"))
    os._exit(0)

if sys.argv[1] == "train":
    checkpoint = pathlib.Path(option("--out")) / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (checkpoint.parent / "histories.jsonl").write_text("{}")
elif sys.argv[1] == "serve":
    if os.environ.get("BROKEN"):
        print("the checkpoint is broken")
        sys.exit(2)
    signal.signal(signal.SIGTERM, stopped)
    http.server.HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(clone: Path) -> Path:
    venv = clone / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "stand_in.py").write_text(STAND_IN)
    (venv / "bin/groundrec").write_text(f'#!/bin/sh\nexec {sys.executable} {venv}/stand_in.py "$@"\n')
    (venv / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for command in (venv / "bin").iterdir():
        command.chmod(0o755)
    (clone / "deploy/venv.sh").write_text(f"echo {venv}\n")
    (clone / "training/recipes").mkdir(parents=True)
    (clone / "training/recipes/quickstart.toml").write_text("")
    return clone


def start(stand_in: Path, port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(stand_in / "deploy/quickstart.sh"), "--port", str(port)],
        env={**os.environ, "GROUNDREC_PYTHON": sys.executable, "CALLS": str(stand_in / "calls")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # a run in the background begins with SIGINT ignored, and a shell cannot undo that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture
def quickstart(stand_in: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    process = start(stand_in, port)
    yield process, port
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    raise AssertionError(f"the quickstart ended: {text}")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_the_quickstart_trains_serves_and_stops_in_order(
    quickstart: tuple[subprocess.Popen[str], int], stand_in: Path, ending: signal.Signals
) -> None:
    process, port = quickstart
    shown = read_until(process, "Ctrl-C stops")
    assert f"curl -s localhost:{port}/recommend" in shown
    assert f"curl -s localhost:{port}/items" in shown
    opener = build_opener(ProxyHandler({}))
    assert opener.open(f"http://127.0.0.1:{port}/health/live", timeout=5).status == 200

    process.send_signal(ending)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0, rest
    calls = (stand_in / "calls").read_text().splitlines()
    assert [line.split()[0] for line in calls] == ["train", "histories", "serve", "stopped"]
    redis_port = int(calls[2].partition("redis://127.0.0.1:")[2].partition("/")[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", redis_port), 2)
    assert (stand_in / "runs/quickstart/redis/appendonly.aof").exists()


def test_a_second_start_brings_no_forgotten_user_back(
    quickstart: tuple[subprocess.Popen[str], int], stand_in: Path
) -> None:
    process, port = quickstart
    read_until(process, "Ctrl-C stops")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    again = start(stand_in, port)
    assert "Histories: loaded earlier" in read_until(again, "Ctrl-C stops")
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=30)
    calls = [line.split()[0] for line in (stand_in / "calls").read_text().splitlines()]
    assert calls == ["train", "histories", "serve", "stopped", "serve", "stopped"]


def test_a_second_run_does_not_train_again(stand_in: Path) -> None:
    calls = str(stand_in / "calls")
    for _ in range(2):
        answer = run(stand_in / "deploy/quickstart.sh", "--no-serve", CALLS=calls)
        assert answer.returncode == 0, answer.stderr
    assert [line.split()[0] for line in Path(calls).read_text().splitlines()] == ["train"]


def test_a_recipe_that_is_none_is_refused_before_anything_is_made(stand_in: Path) -> None:
    answer = run(stand_in / "deploy/quickstart.sh", "--recipe", "quikstart", CALLS=str(stand_in / "calls"))
    assert answer.returncode == 2 and "there is no recipe quikstart" in answer.stderr
    assert not (stand_in / "runs/quikstart").exists()


def test_a_service_that_ends_early_shows_its_last_lines_and_its_code(stand_in: Path) -> None:
    answer = run(
        stand_in / "deploy/quickstart.sh",
        "--port",
        str(free_port()),
        CALLS=str(stand_in / "calls"),
        BROKEN="yes",
    )
    assert answer.returncode == 2
    assert "the checkpoint is broken" in answer.stderr
    assert "ended with code 2" in answer.stderr
