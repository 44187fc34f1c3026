"""``groundrec demo`` becomes the quickstart's script, with its arguments, and says so where there is none."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from training.cli import app as cli
from training.demo_cli import SCRIPT

RUN = str(SCRIPT.parent.parent / "runs" / "quickstart")


class _Became(Exception):
    """The process would be another program now."""


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([], ["/bin/bash", str(SCRIPT), "--port", "8000", "--recipe", "quickstart"]),
        (
            ["--port", "9", "--recipe", "x y", "--no-serve"],
            ["/bin/bash", str(SCRIPT), "--port", "9", "--recipe", "x y", "--no-serve"],
        ),
        (
            ["--dry-run"],
            [sys.executable, "-m", "service", "train", "--recipe", "quickstart", "--out", RUN, "--dry-run"],
        ),
    ],
)
def test_demo_becomes_the_quickstart(given: list[str], wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []

    def become(program: str, arguments: list[str]) -> None:
        became.append(arguments)
        raise _Became

    monkeypatch.setattr("training.demo_cli.os.execv", become)
    ended = CliRunner().invoke(cli, ["demo", *given])
    assert isinstance(ended.exception, _Became) and became == [wanted]


def test_demo_outside_a_clone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.demo_cli.SCRIPT", tmp_path / "quickstart.sh")
    ended = CliRunner().invoke(cli, ["demo"])
    assert ended.exit_code == 2 and "needs a clone" in ended.stderr
