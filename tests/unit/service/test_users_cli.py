"""The commands about keys, feedback and histories: what a stranger types and reads."""

from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from service.api_keys import KeyRing
from service.cli import app
from service.errors import StartupError
from service.key_file import read_keys


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_key_is_printed_once_alone_on_stdout_and_works(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    made = run(
        "keys",
        "create",
        "--file",
        file,
        "--name",
        "shop",
        "--scopes",
        "recommend,events",
        "--burst",
        5,
        "--requests-per-second",
        2,
    )
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    client = KeyRing(lambda: read_keys(file)).find(key)
    assert client is not None and client.name == "shop" and client.burst == 5
    assert run("keys", "create", "--file", file, "--name", "shop").exit_code == 0
    assert run("keys", "list", "--file", file).stdout == "shop: recommend,events; 2 key(s); 2/s\n"
    assert "1 key(s) left" in run("keys", "retire", "--file", file, "--name", "shop").stdout
    assert KeyRing(lambda: read_keys(file)).find(key) is None


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("create", "--name", "a", "--scopes", "king"), "king is none of recommend, events, items, admin"),
        (("create", "--name", "a"), "say what it may do"),
        (("retire", "--name", "a"), "not a readable key file"),
        (("list",), "not a readable key file"),
    ],
)
def test_a_wrong_command_says_what_to_do(tmp_path: Path, arguments: tuple[str, ...], fault: str) -> None:
    ended = run("keys", *arguments, "--file", tmp_path / "keys.toml")
    assert isinstance(ended.exception, StartupError) and fault in str(ended.exception)


def test_feedback_is_exported_from_redis(tmp_path: Path, redis_url: str) -> None:
    entry = '{"user_id":"u","item_id":"i","event":"click","weight":1.0,"timestamp":5.0}'
    with redis.Redis.from_url(redis_url) as backend:
        backend.xadd("groundrec:feedback:events", {"entry": entry})
    out = tmp_path / "feedback.jsonl"
    ended = run("feedback", "export", "--out", out, "--redis-url", redis_url)
    assert ended.stdout == f"{out}: 1 events; left out: 0 repeated, 0 of weight 0\n"
    assert '"item_id": "i"' in out.read_text()


def test_an_unreachable_redis_is_one_clear_error(tmp_path: Path) -> None:
    ended = run("feedback", "export", "--out", tmp_path / "a.jsonl", "--redis-url", "redis://:secret@127.0.0.1:1/0")
    assert isinstance(ended.exception, StartupError)
    assert "--redis-url redis://:***@127.0.0.1:1/0" in str(ended.exception)
