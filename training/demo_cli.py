"""``groundrec demo``: the quickstart of a clone, from training to a running service, under the command's own name.

The script does the work, because it must also run where nothing is installed yet; this process becomes it, so that
signals and exit codes are the script's. It knows neither training nor service.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from training.errors import TrainingError

SCRIPT = Path(__file__).resolve().parent.parent / "deploy" / "quickstart.sh"


def demo(
    port: Annotated[int, typer.Option(help="where the service listens on this machine")] = 8000,
    recipe: Annotated[str, typer.Option(help="the training recipe; its run lies in runs/NAME")] = "quickstart",
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="start Redis and the service, too")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what training would cost, and do nothing")] = False,
) -> None:
    """Train a small model on real data, start Redis and the service, print working curl lines."""
    if not SCRIPT.is_file():
        raise TrainingError(f"groundrec demo needs a clone of the project: {SCRIPT} is not there")
    if dry_run:
        out = SCRIPT.parent.parent / "runs" / recipe
        _become(sys.executable, "-m", "service", "train", "--recipe", recipe, "--out", str(out), "--dry-run")
    _become("/bin/bash", str(SCRIPT), "--port", str(port), "--recipe", recipe, *([] if serve else ["--no-serve"]))


def _become(program: str, *arguments: str) -> NoReturn:
    os.execv(program, [program, *arguments])  # nosec B606
