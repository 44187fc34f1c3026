import asyncio
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.cli import TRAINING_COMMANDS, mount_training
from service.cli import app as cli
from service.errors import StartupError
from service.settings import Settings


@pytest.mark.parametrize("name", TRAINING_COMMANDS)
def test_without_training_its_commands_say_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "training.cli", None)
    app = typer.Typer()
    mount_training(app)
    ended = CliRunner().invoke(app, [name, "--recipe", "quickstart"])
    assert isinstance(ended.exception, StartupError)
    assert "pip install 'groundrec[train]'" in str(ended.exception)


def test_with_training_its_commands_are_top_level() -> None:
    app = typer.Typer()
    mount_training(app)
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert all(name in shown for name in TRAINING_COMMANDS)


def test_the_service_runs_on_asyncio_s_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop forks to start a process, and hangs for ever where BLAS is at work on another thread meanwhile."""
    loops: list[str] = []

    async def serve(settings: Settings) -> int:
        loops.append(type(asyncio.get_running_loop()).__module__)
        return 0

    monkeypatch.setattr("service.server.serve", serve)
    monkeypatch.setattr("service.cli._refuse_damaged", lambda settings: None)
    ended = CliRunner().invoke(cli, ["serve", "--checkpoint", str(tmp_path)])
    assert ended.exit_code == 0 and loops == ["asyncio.unix_events"]
