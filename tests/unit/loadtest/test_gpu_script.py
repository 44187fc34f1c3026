"""The script for a GPU machine, as far as a machine without one can tell: arguments, refusals, what it would run."""

import shutil
import subprocess
from pathlib import Path

import pytest

from loadtest.engine.grid import PRESETS

SCRIPT = Path(__file__).resolve().parents[3] / "loadtest/gpu.sh"


def gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(["bash", SCRIPT, *arguments], capture_output=True, text=True, env=environment)


def commands(*arguments: str) -> list[str]:
    ended = gpu("--dry-run", *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_it_would_install_and_then_measure_every_published_shape() -> None:
    install, *runs = commands()
    assert install.split()[-2:] == [str(SCRIPT.parents[1] / "deploy/venv.sh"), "serve-gpu"]
    presets = [run.split("--preset ")[1].split()[0] for run in runs]
    assert presets == ["gpu-nvidia", "gpu-flashrec"]
    assert set(presets) <= set(PRESETS)
    assert all("--device cuda" in run and "--minutes" not in run for run in runs)


def test_options_reach_the_benchmark() -> None:
    _, run = commands(
        "--shapes", "flashrec", "--modes", "compiled", "--minutes", "9", "--kv-gib", "20", "--work", "/w w"
    )
    for wanted in ("gpu-flashrec", "--modes compiled", "--minutes 9", "--kv-gib 20", "--work /w\\ w"):
        assert wanted in run


def test_the_published_shapes_are_the_ones_asked_for() -> None:
    nvidia, flashrec = PRESETS["gpu-nvidia"].cells, PRESETS["gpu-flashrec"].cells
    assert {(cell.world.shape, cell.prompt, cell.beam) for cell in nvidia} == {
        ("qwen3-1.7b", 1000, 256),
        ("qwen3-1.7b", 5000, 256),
    }
    assert {(cell.prompt, cell.beam) for cell in flashrec} == {(303, 50)}
    assert {cell.world.checkpoint.levels for cell in (*nvidia, *flashrec)} == {3}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shapes", "tea"],
        ["--shapes", ""],
        ["--modes", "fast"],
        ["--minutes", "soon"],
        ["--kv-gib", "0"],
        ["--work"],
        ["--frobnicate"],
    ],
)
def test_what_cannot_be_is_refused_in_one_line_that_names_the_option(arguments: list[str]) -> None:
    ended = gpu("--dry-run", *arguments)
    assert ended.returncode == 2 and not ended.stdout
    assert arguments[0] in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have a GPU")
def test_without_a_gpu_nothing_is_installed() -> None:
    ended = gpu()
    assert ended.returncode == 2
    assert "no CUDA GPU" in ended.stderr


def test_help_names_every_option() -> None:
    shown = gpu("--help").stdout
    assert all(option in shown for option in ("--shapes", "--modes", "--minutes", "--kv-gib", "--work", "--dry-run"))
