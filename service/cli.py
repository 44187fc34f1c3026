"""The command ``groundrec``: serve, check, histories load, bench; training's commands where it is installed.

Whatever makes a start impossible ends as one line on stderr and exit code 2. It parses and prints; the work is
elsewhere, and imported only by the command that needs it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from service.catalog_cli import catalog_app
from service.errors import StartupError
from service.models_cli import models_app
from service.operations_cli import backup_app, checkpoint_app
from service.settings import Settings, load_settings
from service.users_cli import feedback_app, histories_app, keys_app

app = typer.Typer(name="groundrec", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(histories_app, name="histories")
app.add_typer(feedback_app, name="feedback")
app.add_typer(keys_app, name="keys")
app.add_typer(catalog_app, name="catalog")
app.add_typer(models_app, name="models")
app.add_typer(backup_app, name="backup")
app.add_typer(checkpoint_app, name="checkpoint")

OWN_COMMANDS = {
    "serve",
    "check",
    "catalog",
    "models",
    "histories",
    "feedback",
    "keys",
    "backup",
    "checkpoint",
    "bench",
}
TRAINING_COMMANDS = ("demo", "train", "ground", "evaluate", "inspect", "experiment", "report", "calibrate")


def _help(name: str) -> str:
    return str(Settings.model_fields[name].description)


CheckpointOption = Annotated[Path | None, typer.Option("--checkpoint", help=_help("checkpoint"))]
RedisOption = Annotated[str | None, typer.Option("--redis-url", help=_help("redis_url"))]
HostOption = Annotated[str | None, typer.Option("--host", help=_help("host"))]
PortOption = Annotated[int | None, typer.Option("--port", help=_help("port"))]
EngineOption = Annotated[str | None, typer.Option("--engine", help=_help("engine"))]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file with any of the settings")]
AuthOption = Annotated[str | None, typer.Option("--auth", help=_help("auth"))]
KeyFileOption = Annotated[Path | None, typer.Option("--api-keys-file", help=_help("api_keys_file"))]
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
    auth: AuthOption = None,
    api_keys_file: KeyFileOption = None,
    allow_volatile: VolatileOption = None,
) -> None:
    """Serve a checkpoint; every setting can also come from the environment (GROUNDREC_...) or a TOML file."""
    flags: dict[str, Any] = {"checkpoint": checkpoint, "redis_url": redis_url, "host": host, "port": port}
    flags["engine"] = engine
    flags |= {"auth": auth, "api_keys_file": api_keys_file, "allow_volatile": allow_volatile}
    settings = load_settings(flags, config).settings
    _refuse_damaged(settings)
    from service.logs import configure_logs
    from service.server import serve as serve_until_told

    configure_logs(settings.log_level)
    try:
        # not uvloop: it forks where asyncio does not, and hangs if BLAS is at work on another thread when the engine's
        # process is started
        code = asyncio.run(serve_until_told(settings))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None
    raise typer.Exit(code)


def _refuse_damaged(settings: Settings) -> None:
    """Prove the checkpoints first: their files before torch is imported, what is in them before all else is."""
    from service.model.checkpoint_files import prove_files

    for folder in settings.checkpoints:
        prove_files(folder)
    from service.model.checkpoint import open_checkpoint

    for folder in settings.checkpoints:
        open_checkpoint(folder).prove_contents()


@app.command()
def check(
    checkpoint: CheckpointOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
    host: HostOption = None,
    auth: AuthOption = None,
    api_keys_file: KeyFileOption = None,
    allow_volatile: VolatileOption = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="show each setting and its origin")] = False,
) -> None:
    """Verify checkpoint and Redis as `serve` would, without serving."""
    flags: dict[str, Any] = {"checkpoint": checkpoint, "redis_url": redis_url, "host": host, "auth": auth}
    flags |= {"api_keys_file": api_keys_file, "allow_volatile": allow_volatile}
    loaded = load_settings(flags, config)
    if print_config:
        for line in loaded.lines():
            typer.echo(line)
    from service.app import check_service

    for warning in asyncio.run(check_service(loaded.settings)):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo("checkpoint and Redis are fit to serve")


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
