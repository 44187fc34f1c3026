"""The command ``groundrec``: serve, check, histories load, bench; training's commands where it is installed.

Whatever makes a start impossible ends as one line on stderr and exit code 2. It parses and prints; the work is
elsewhere, and imported only by the command that needs it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from service.errors import RequestError, StartupError
from service.settings import Settings, load_settings, masked_url

app = typer.Typer(name="groundrec", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
histories_app = typer.Typer(no_args_is_help=True, help="Users' histories in Redis.")
app.add_typer(histories_app, name="histories")

OWN_COMMANDS = {"serve", "check", "histories", "bench"}
TRAINING_COMMANDS = ("train", "ground", "evaluate", "inspect")


def _help(name: str) -> str:
    return str(Settings.model_fields[name].description)


CheckpointOption = Annotated[Path | None, typer.Option("--checkpoint", help=_help("checkpoint"))]
RedisOption = Annotated[str | None, typer.Option("--redis-url", help=_help("redis_url"))]
HostOption = Annotated[str | None, typer.Option("--host", help=_help("host"))]
PortOption = Annotated[int | None, typer.Option("--port", help=_help("port"))]
EngineOption = Annotated[str | None, typer.Option("--engine", help=_help("engine"))]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file with any of the settings")]
VolatileOption = Annotated[
    bool | None, typer.Option("--allow-volatile/--no-allow-volatile", help=_help("allow_volatile"))
]


@app.command()
def serve(
    checkpoint: CheckpointOption = None,
    redis_url: RedisOption = None,
    host: HostOption = None,
    port: PortOption = None,
    engine: EngineOption = None,
    config: ConfigOption = None,
    allow_volatile: VolatileOption = None,
) -> None:
    """Serve a checkpoint; every setting can also come from the environment (GROUNDREC_...) or a TOML file."""
    flags = {"checkpoint": checkpoint, "redis_url": redis_url, "host": host, "port": port, "engine": engine}
    settings = load_settings({**flags, "allow_volatile": allow_volatile}, config).settings
    from service.logs import configure_logs
    from service.server import serve as serve_until_told

    configure_logs(settings.log_level)
    try:
        code = asyncio.run(serve_until_told(settings))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None
    raise typer.Exit(code)


@app.command()
def check(
    checkpoint: CheckpointOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
    allow_volatile: VolatileOption = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="show each setting and its origin")] = False,
) -> None:
    """Verify checkpoint and Redis as `serve` would, without serving."""
    flags = {"checkpoint": checkpoint, "redis_url": redis_url, "allow_volatile": allow_volatile}
    loaded = load_settings(flags, config)
    if print_config:
        for line in loaded.lines():
            typer.echo(line)
    from service.app import check_service

    for warning in asyncio.run(check_service(loaded.settings)):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo("checkpoint and Redis are fit to serve")


@histories_app.command("load")
def load_histories(
    file: Annotated[Path, typer.Option("--file", help='JSONL: {"user_id": "..", "items": [[item_id, seconds], ..]}')],
    redis_url: Annotated[str, typer.Option("--redis-url", help=_help("redis_url"))],
) -> None:
    """Write users' histories from a file; existing ones are extended."""
    from rich.progress import Progress

    with Progress(transient=True, disable=not sys.stderr.isatty()) as bar:
        size = file.stat().st_size if file.is_file() else 0
        task = bar.add_task("histories", total=size)
        users = asyncio.run(_load(file, redis_url, lambda count: bar.advance(task, count)))
    typer.echo(f"{users} histories loaded into {masked_url(redis_url)}")


async def _load(file: Path, redis_url: str, progress: Any) -> int:
    from service.history_file import read_histories
    from service.redis_stores import redis_history

    store = redis_history(url=redis_url, timeout_seconds=10.0)
    try:
        return await store.load(read_histories(file, progress))
    except RequestError as error:
        raise StartupError(f"--redis-url {masked_url(redis_url)}: {error.detail}") from None
    finally:
        await store.close()


def mount_training(app: typer.Typer) -> None:
    """Add training's commands, or stand-ins that say how to get them."""
    try:
        from training.cli import app as training_app
    except ImportError as error:
        for name in TRAINING_COMMANDS:
            app.command(name, context_settings={"ignore_unknown_options": True})(_untrained(str(error)))
        return
    app.add_typer(training_app)


def mount_benchmarks(app: typer.Typer) -> None:
    """Add ``groundrec bench``, whose commands import what they measure only when they are called."""
    try:
        from loadtest.cli import app as bench_app
    except ImportError:  # the images hold the service alone
        return
    app.add_typer(bench_app, name="bench")


def _untrained(reason: str) -> Any:
    def command(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> NoReturn:
        """Needs the extra `train`."""
        raise StartupError(f"training is not installed ({reason}); install the extra: pip install 'groundrec[train]'")

    return command


def main() -> None:
    """The console script."""
    mount_benchmarks(app)
    if not OWN_COMMANDS.intersection(sys.argv[1:2]):
        mount_training(app)
    try:
        app()
    except StartupError as error:
        typer.echo("groundrec: " + " ".join(str(error).split()), err=True)
        sys.exit(2)
