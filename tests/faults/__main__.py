"""Fault drills as commands.

    python -m tests.faults list
    python -m tests.faults redis-killed 6 --json FILE
    python -m tests.faults all --table tests/faults/README.md

Every figure is printed beside its limit; the last line is one JSON object; the exit code is 1 if a drill fell short.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.faults.drill import Drill, Result, carry_out
from tests.faults.drills import DRILLS, chosen
from tests.faults.scene import Scene
from tests.faults.table import write_table


def main(
    names: Annotated[list[str], typer.Argument(help="names or numbers; `all`; `quick`; `list` tells what there is")],
    seconds: Annotated[float | None, typer.Option(help="length of the load [default: each drill's own]")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the last line here too")] = None,
    table: Annotated[Path | None, typer.Option(help="renew these drills' rows in this Markdown file")] = None,
) -> None:
    """Carry drills out, one after another."""
    if names == ["list"]:
        return _list()
    try:
        drills = chosen(names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    results = asyncio.run(_carry_out(drills, seconds, table))
    line = json.dumps({"ok": all(result.ok for result in results), "drills": [result.plain() for result in results]})
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)
    sys.exit(0 if all(result.ok for result in results) else 1)


def _list() -> None:
    for drill in sorted(DRILLS, key=lambda drill: drill.number):
        quick = "quick" if drill.quick is not None else ""
        typer.echo(f"{drill.number:>3} {drill.name:<24} {quick:<6} {drill.promise}")


async def _carry_out(drills: list[Drill], seconds: float | None, table: Path | None) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory(prefix="drills-") as folder:
        async with Scene(Path(folder)) as scene:
            for drill in drills:
                result = await carry_out(drill, scene, seconds)
                _tell(result)
                results.append(result)
                if table:
                    write_table(table, [result])
    return results


def _tell(result: Result) -> None:
    typer.echo(f"{result.drill.number} {result.drill.name}: {result.drill.promise} ({result.took:.0f} s)")
    for figure in result.figures:
        typer.echo(figure.line)
    if result.failure:
        typer.echo(f"  BROKE {result.failure}")


if __name__ == "__main__":
    typer.run(main)
