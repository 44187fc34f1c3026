import sys

import pytest
import typer
from typer.testing import CliRunner

from service.cli import TRAINING_COMMANDS, mount_training
from service.errors import StartupError


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
