"""Commands for who runs the service: ``backup save|restore`` and ``checkpoint migrate``.

They parse and print; the work is elsewhere, and imported only by the command that needs it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.errors import RequestError, StartupError
from service.settings import Settings, masked_url

backup_app = typer.Typer(no_args_is_help=True, help="The item log and the histories, out of Redis and back.")
checkpoint_app = typer.Typer(no_args_is_help=True, help="Checkpoints on disk.")

RedisUrl = Annotated[str, typer.Option("--redis-url", help=str(Settings.model_fields["redis_url"].description))]
BackupFile = Annotated[Path, typer.Option("--file", help="the backup")]


@backup_app.command("save")
def save(file: BackupFile, redis_url: RedisUrl) -> None:
    """Write every key of groundrec to a file; the service may go on meanwhile."""
    keys = asyncio.run(_with_backup(redis_url, lambda backup, progress: backup.save(file, progress)))
    typer.echo(f"{keys} keys of {masked_url(redis_url)} saved in {file}")


@backup_app.command("restore")
def restore(
    file: BackupFile,
    redis_url: RedisUrl,
    replace: Annotated[bool, typer.Option("--replace", help="delete what is there first")] = False,
) -> None:
    """Write a backup's keys into a Redis. Stop the replicas first, or they write back what they remember."""
    keys = asyncio.run(
        _with_backup(redis_url, lambda backup, progress: backup.restore(file, replace=replace, progress=progress))
    )
    typer.echo(f"{keys} keys of {file} restored into {masked_url(redis_url)}")


async def _with_backup(redis_url: str, work: Callable[[Any, Callable[[int], None]], Awaitable[int]]) -> int:
    from rich.progress import Progress

    from service.stores.redis_backup import RedisBackup

    shown = masked_url(redis_url)
    backup = RedisBackup(redis_url, shown_url=shown)
    try:
        with Progress(transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("keys", total=None)
            return await work(backup, lambda keys: bar.update(task, completed=keys))
    except RequestError as error:
        raise StartupError(f"--redis-url {shown}: {error.detail}") from None
    finally:
        await backup.close()


@checkpoint_app.command("migrate")
def migrate(
    checkpoint: Annotated[Path, typer.Option("--checkpoint", help="folder of a servable checkpoint")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would change")] = False,
) -> None:
    """Rewrite a checkpoint's manifest to the newest schema; tensors and model version stay as they are."""
    from service.model.checkpoint import migrate_checkpoint

    before, after = migrate_checkpoint(checkpoint, dry_run=dry_run)
    if before == after:
        typer.echo(f"{checkpoint}: schema version {after} is the newest already")
    else:
        typer.echo(f"{checkpoint}: schema version {before} {'would become' if dry_run else 'is now'} {after}")
