"""The benchmark of new items runs small and measures every size that was asked for."""

import json
from pathlib import Path

from typer.testing import CliRunner

from loadtest.cli import app


def test_every_size_is_measured_and_written(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    result = CliRunner().invoke(app, ["new-items", "--trained", "300", "--new", "50,10", "--json", str(target)])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert json.loads(target.read_text()) == figures
    assert [row["new_items"] for row in figures["rows"]] == [10, 50]
    assert all(row["request_cpu_ms"] > 0 and row["post_cpu_ms"] > 0 for row in figures["rows"])
