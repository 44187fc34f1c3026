"""The process: refusals are one line, exit code 2 and a closed port; SIGTERM drains and ends with 0."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from service.errors import EngineError, StartupError
from service.model.checkpoint import Checkpoint
from service.server import DrainingServer, bind, server_config
from service.settings import load_settings
from tests.redis_server import RedisServer, free_port
from tests.service_doubles import running
from tests.tiny_checkpoint import Shape, build
from tests.tiny_text_encoder import with_text_encoder

ROOT = Path(__file__).resolve().parents[2]


def environment(**extra: str) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GROUNDREC_")}
    return {**kept, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **extra}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "service", *arguments]


def refused(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run a command that must not start; its one line."""
    ended = subprocess.run(
        command(*arguments), cwd=ROOT, env=env or environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("groundrec: "), ended.stderr
    return ended.stderr


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def serve_refused(*arguments: str) -> str:
    """The line of a `serve` that must not start, and proof that its port was closed all the time."""
    port = free_port()
    process = subprocess.Popen(
        command("serve", "--port", str(port), *arguments),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        assert not is_open(port)
        time.sleep(0.02)
    out, line = process.communicate(timeout=60)
    assert process.returncode == 2 and out == ""
    assert line.count("\n") == 1 and line.startswith("groundrec: "), line
    return line


@pytest.fixture
def damaged(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint.folder, tmp_path / "damaged"))


def test_a_missing_checkpoint_is_refused(tmp_path: Path, redis_url: str) -> None:
    line = serve_refused("--checkpoint", str(tmp_path / "nowhere"), "--redis-url", redis_url)
    assert "manifest.json: not found; --checkpoint" in line


def test_a_flipped_bit_is_refused(damaged: Path, redis_url: str) -> None:
    path = damaged / "lm" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "lm/model.safetensors: its sha256" in serve_refused("--checkpoint", str(damaged), "--redis-url", redis_url)


def test_a_truncated_checkpoint_is_refused(damaged: Path, redis_url: str) -> None:
    path = damaged / "catalog.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    line = serve_refused("--checkpoint", str(damaged), "--redis-url", redis_url)
    assert "catalog.safetensors" in line and "bytes" in line


def test_an_unreachable_redis_is_refused_without_showing_its_password(checkpoint: Checkpoint) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}/0"
    line = serve_refused("--checkpoint", str(checkpoint.folder), "--redis-url", url)
    assert "--redis-url redis://user:***@127.0.0.1" in line and "secret" not in line


def test_a_volatile_redis_is_refused_with_the_way_out(checkpoint: Checkpoint, tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--appendonly", "no", "--save", "").start()
    try:
        line = serve_refused("--checkpoint", str(checkpoint.folder), "--redis-url", server.url)
    finally:
        server.kill()
    assert "persistence is off" in line and "--allow-volatile" in line


def test_a_busy_port_is_refused(checkpoint: Checkpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused("serve", "--checkpoint", str(checkpoint.folder), "--port", port)
    assert f"--port {port}: Address already in use" in line


def test_two_starting_services_cannot_hold_one_port() -> None:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    with bind("127.0.0.1", port), pytest.raises(StartupError, match=f"--port {port}: Address already in use"):
        bind("127.0.0.1", port)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0?foo=bar", "redis://:sE#cr3t@127.0.0.1:1/0"])
def test_a_redis_url_that_is_none_is_refused_without_quoting_it(url: str, checkpoint: Checkpoint) -> None:
    line = refused("serve", "--checkpoint", str(checkpoint.folder), "--redis-url", url)
    assert "redis_url is not of the form redis://" in line and "sE" not in line


def test_an_unknown_variable_is_refused_with_the_nearest_name(checkpoint: Checkpoint) -> None:
    env = environment(GROUNDREC_MAX_INFLIHGT="3")
    line = refused("serve", "--checkpoint", str(checkpoint.folder), env=env)
    assert "GROUNDREC_MAX_INFLIHGT is not a setting; did you mean GROUNDREC_MAX_INFLIGHT?" in line


def test_check_shows_the_settings_with_their_origin_and_verifies_both(checkpoint: Checkpoint, redis_url: str) -> None:
    env = environment(GROUNDREC_REDIS_URL=redis_url.replace("://", "://:secret@"), GROUNDREC_PORT="8123")
    ended = subprocess.run(
        command("check", "--print-config", "--checkpoint", str(checkpoint.folder), "--redis-url", redis_url),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "port = 8123  (environment)" in ended.stdout and "max_inflight = 64  (default)" in ended.stdout
    assert "fit to serve" in ended.stdout and "secret" not in ended.stdout
    assert "sha256" in refused("check", "--checkpoint", str(flipped(checkpoint)), "--redis-url", redis_url)


def flipped(checkpoint: Checkpoint) -> Path:
    folder = checkpoint.folder.parent / "flipped"
    shutil.copytree(checkpoint.folder, folder, dirs_exist_ok=True)
    path = folder / "quantizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint with everything in it, text encoder included."""
    folder = tmp_path_factory.mktemp("whole")
    return with_text_encoder(build(folder / "tiny", Shape()), folder)


@pytest.fixture
def serving(whole: Checkpoint, redis_url: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A real process with the torch engine, once it is ready."""
    histories = tmp_path / "histories.jsonl"
    histories.write_text('{"user_id": "42", "items": [["item-7", 1], ["item-8", 2]]}\n')
    load = command("histories", "load", "--file", str(histories), "--redis-url", redis_url)
    assert b"1 histories" in subprocess.run(load, cwd=ROOT, env=environment(), check=True, capture_output=True).stdout
    port = free_port()
    places = ["--checkpoint", str(whole.folder), "--redis-url", redis_url, "--port", str(port), "--engine", "torch"]
    env = environment(GROUNDREC_DRAIN_SECONDS="0.7")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command("serve", *places), cwd=ROOT, env=env, stderr=log)
    deadline = time.monotonic() + 90
    while not is_open(port):
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.05)
    yield process, f"http://127.0.0.1:{port}"
    if process.poll() is None:
        process.kill()
        process.wait()


async def test_a_whole_process_serves_learns_an_item_and_drains(serving: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = serving
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/health/ready")).status_code == 200
        answer = (await client.post("/recommend", json={"user_id": "42"})).json()
        assert answer["degraded"] is False and {item["source"] for item in answer["items"]} == {"model"}
        posted = (await client.post("/items", json={"item_id": "new", "title": "a film"})).json()
        assert posted["items"][0]["result"] == "created"
        everything = (await client.post("/recommend", json={"user_id": "42", "num_results": 100})).json()
        assert {"new_item"} == {item["source"] for item in everything["items"] if item["item_id"] == "new"}
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert (await client.get("/health/ready")).json()["reasons"] == ["draining"]
        assert (await client.post("/recommend", json={"user_id": "42"})).json()["degraded"] is False
    assert await asyncio.to_thread(process.wait, 10) == 0


async def test_an_address_can_be_taken_again_although_the_service_closed_connections(checkpoint: Checkpoint) -> None:
    """A closed connection stays for a minute with whoever closed it first."""
    async with running(checkpoint) as service:
        settings = load_settings({"checkpoint": checkpoint.folder}).settings
        server = DrainingServer(server_config(service.service, settings), service.service.health, 0.0)
        with bind("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client, asyncio.timeout(60):
                while not server.started:
                    await asyncio.sleep(0.01)
                assert (await client.get("/health/ready")).status_code == 200
                server.should_exit = True
                await serving
    bind("127.0.0.1", port).close()


async def test_vllm_39863_a_lost_engine_is_not_hidden_but_ends_the_process(checkpoint: Checkpoint) -> None:
    async with running(checkpoint, canary_seconds=0.05) as service:
        settings = load_settings({"checkpoint": checkpoint.folder}).settings
        server = DrainingServer(server_config(service.service, settings), service.service.health, 5.0)
        with bind("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await asyncio.sleep(0.3)
            assert not serving.done()
            service.engine.failure = EngineError("gone")
            await asyncio.wait_for(serving, 5)
    assert server.engine_lost
