"""The commands of who runs the service: they say what they did, and what stands in the way."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.errors import CheckpointError, StartupError
from service.model.checkpoint import Checkpoint, open_checkpoint
from service.model.manifest import SCHEMA_VERSION
from tests.tiny_checkpoint import Shape, build


@pytest.fixture
def first_schema(tmp_path: Path) -> Checkpoint:
    """A checkpoint as the first program wrote it."""
    made = build(tmp_path / "old", Shape(items=20, memory=False))
    manifest = made.folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 1}))
    return open_checkpoint(made.folder)


def run(*arguments: str | Path) -> str:
    answer = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert answer.exit_code == 0
    return answer.stdout


def test_a_checkpoint_of_an_older_schema_is_brought_to_the_newest(first_schema: Checkpoint) -> None:
    said = run("checkpoint", "migrate", "--checkpoint", first_schema.folder)
    assert f"schema version 1 is now {SCHEMA_VERSION}" in said
    migrated = open_checkpoint(first_schema.folder).manifest
    assert migrated.schema_version == SCHEMA_VERSION
    assert migrated.model_version == first_schema.manifest.model_version
    assert migrated.files == first_schema.manifest.files


def test_a_dry_run_only_says_so(first_schema: Checkpoint) -> None:
    before = (first_schema.folder / "manifest.json").read_bytes()
    said = run("checkpoint", "migrate", "--dry-run", "--checkpoint", first_schema.folder)
    assert f"schema version 1 would become {SCHEMA_VERSION}" in said
    assert (first_schema.folder / "manifest.json").read_bytes() == before


def test_migrating_twice_changes_nothing(first_schema: Checkpoint) -> None:
    run("checkpoint", "migrate", "--checkpoint", first_schema.folder)
    before = (first_schema.folder / "manifest.json").read_bytes()
    assert "is the newest already" in run("checkpoint", "migrate", "--checkpoint", first_schema.folder)
    assert (first_schema.folder / "manifest.json").read_bytes() == before


def test_a_damaged_checkpoint_is_not_migrated(first_schema: Checkpoint) -> None:
    damaged = first_schema.folder / "quantizer.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    before = (first_schema.folder / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match="its sha256 is not the manifest's"):
        run("checkpoint", "migrate", "--checkpoint", first_schema.folder)
    assert (first_schema.folder / "manifest.json").read_bytes() == before


def test_a_backup_goes_out_and_comes_back(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "groundrec.backup"
    assert "0 keys" in run("backup", "save", "--redis-url", redis_url, "--file", file)
    assert "0 keys" in run("backup", "restore", "--redis-url", redis_url, "--file", file)


def test_a_redis_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    url = "redis://user:hunter2@127.0.0.1:1/0"
    with pytest.raises(StartupError, match=r"--redis-url redis://user:\*\*\*@127\.0\.0\.1:1/0") as refused:
        run("backup", "save", "--redis-url", url, "--file", tmp_path / "backup")
    assert "hunter2" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_named(redis_url: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--file .*/missing/backup: cannot be written"):
        run("backup", "save", "--redis-url", redis_url, "--file", tmp_path / "missing" / "backup")
