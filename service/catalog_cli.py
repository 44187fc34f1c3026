"""Commands about the live catalogue: ``catalog list|diff|rollback|export|import|open-codes``.

All but the last two read Redis and the checkpoint directly and need no running service. They parse and print; the
work is elsewhere, and imported only by the command that needs it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.errors import ClientError, RequestError, StartupError
from service.settings import Settings, load_settings

catalog_app = typer.Typer(no_args_is_help=True, help="Posted items: versions, differences, going back, files.")

CheckpointOption = Annotated[
    Path | None, typer.Option("--checkpoint", help=str(Settings.model_fields["checkpoint"].description))
]
RedisOption = Annotated[
    str | None, typer.Option("--redis-url", help=str(Settings.model_fields["redis_url"].description))
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file with any of the settings")]


@catalog_app.command("list")
def list_versions(
    checkpoint: CheckpointOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="entries of the log to show")] = 20,
) -> None:
    """Show the newest version, its hash, how far back one can go, and the last entries of the log."""

    async def work(history: Any, opened: Any) -> None:
        catalog, state = await _catalog(history, opened, None), await history.state()
        typer.echo(f"version {catalog.version}: {len(catalog)} items, {catalog.new_count} of them posted")
        typer.echo(f"catalog_hash {catalog.catalog_hash}")
        typer.echo(f"versions kept: {await history.oldest()} to {state.version}")
        typer.echo("snapshots: " + (", ".join(str(header.version) for header in state.snapshots) or "none yet"))
        for entry in await history.entries(limit):
            typer.echo(_shown(entry))

    _run(checkpoint, redis_url, config, work)


@catalog_app.command("diff")
def diff(
    earlier: Annotated[int, typer.Argument(help="a version")],
    later: Annotated[int | None, typer.Argument(help="a later version; the newest by default")] = None,
    checkpoint: CheckpointOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
) -> None:
    """Show which items came, went and changed between two versions."""

    async def work(history: Any, opened: Any) -> None:
        from service.catalog_history import difference

        found = difference((await history.at(earlier)).state, (await history.at(later)).state)
        for sign, item_ids in (("+", found.added), ("-", found.removed), ("~", found.changed)):
            for item_id in item_ids:
                typer.echo(f"{sign} {item_id}")
        typer.echo(f"{len(found.added)} added, {len(found.removed)} removed, {len(found.changed)} changed")

    _run(checkpoint, redis_url, config, work)


@catalog_app.command("rollback")
def rollback(
    to: Annotated[int, typer.Option("--to", min=0, help="the version to go back to; 0: nothing posted")],
    checkpoint: CheckpointOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done")] = False,
) -> None:
    """Make the catalogue what it was at a version, by entries that undo what came after; replicas follow at once."""

    async def work(history: Any, opened: Any) -> None:
        from service.catalog_history import undoing

        if dry_run:
            entries = undoing((await history.at()).state, (await history.at(to)).state)
            for entry in entries:
                typer.echo(f"{entry.op:7} {entry.item_id}")
            typer.echo(f"{len(entries)} items would be put back to version {to}")
            return
        done = await history.rollback(to)
        typer.echo(f"{done.items} items put back to what they were at version {to}; now at version {done.version}")
        for item_id in done.conflicts:
            typer.echo(f"not put back, it changed meanwhile: {item_id}", err=True)
        if done.conflicts:
            raise typer.Exit(1)

    _run(checkpoint, redis_url, config, work)


@catalog_app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", help="file to write: .jsonl or .parquet")],
    version: Annotated[int | None, typer.Option("--version", min=0, help="the newest by default")] = None,
    checkpoint: CheckpointOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
) -> None:
    """Write all items of a version in the columns that `import` and `groundrec train --items` take."""

    async def work(history: Any, opened: Any) -> None:
        from service.item_file import write_items

        catalog = await _catalog(history, opened, version)
        written = write_items(out, (_row(item) for item, _ in catalog.popular()))
        typer.echo(f"{out}: {written} items of version {catalog.version}, catalog_hash {catalog.catalog_hash}")

    _run(checkpoint, redis_url, config, work)


@catalog_app.command("import")
def import_items(
    file: Annotated[Path, typer.Argument(help="items: .csv, .jsonl or .parquet")],
    url: Annotated[str, typer.Option("--url", help="a running service")] = "http://127.0.0.1:8000",
    key: Annotated[str | None, typer.Option("--key", help="API key with the scope items")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="ground and check everything, write nothing")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="from the first row, whatever was done before")] = False,
) -> None:
    """Post every row of a file to a running service; run again after a stop, it goes on where it was."""
    from rich.progress import Progress

    from service.client import RecClient
    from service.item_file import read_items
    from service.item_import import ItemImport

    rows = sum(1 for _ in read_items(file)) if sys.stderr.isatty() else None
    try:
        with (
            RecClient(url, api_key=key, timeout_seconds=60.0) as client,
            Progress(transient=True, disable=not sys.stderr.isatty()) as bar,
        ):
            task = bar.add_task("items", total=rows)
            work = ItemImport(client, file, restart=restart, dry_run=dry_run)
            done = work.run(lambda count: bar.advance(task, count))
    except ClientError as error:
        raise StartupError(f"--url {url}: {error}") from None
    counts = ", ".join(f"{count} {name}" for name, count in sorted(done.results.items()) if count)
    typer.echo(f"{file}: {counts or 'no rows'}" + (" (dry run, nothing written)" if dry_run else ""))
    if done.rejects:
        typer.echo(f"rejected rows, with field and reason: {done.rejects}", err=True)
        raise typer.Exit(1)


@catalog_app.command("open-codes")
def open_codes(
    url: Annotated[str, typer.Option("--url", help="a running replica")] = "http://127.0.0.1:8000",
    key: Annotated[str | None, typer.Option("--key", help="API key with the scope admin")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say which would be opened")] = False,
) -> None:
    """Open spare codes for posted items of kinds that the codebooks do not know, and move the items to them.

    Their SIDs then say what they are; recommendations were not measured to gain by it (service/README.md).
    """
    from service.client import RecClient

    try:
        with RecClient(url, api_key=key, timeout_seconds=120.0) as client:
            models = client.open_codes(dry_run=dry_run)
    except ClientError as error:
        raise StartupError(f"--url {url}: {error}") from None
    for model in models:
        typer.echo(f"{model.model_version}: {len(model.codes)} codes {'worth opening' if dry_run else 'opened'}")
        for code in model.codes:
            left = f"{code.left_before:.0%} -> {code.left_after:.0%} unexplained"
            typer.echo(f"  level {code.level} code {code.code}: {code.items} items, {left}: {', '.join(code.titles)}")
        typer.echo(f"  {model.moved} items moved, catalogue {model.catalog_version}, spare codes left {model.free}")


def _run(
    checkpoint: Path | None,
    redis_url: str | None,
    config: Path | None,
    work: Callable[[Any, Any], Awaitable[None]],
) -> None:
    """Open the checkpoint and its log, and work on them."""
    settings = load_settings({"checkpoint": checkpoint, "redis_url": redis_url}, config).settings
    from service.catalog_history import CatalogHistory
    from service.lane_assembly import redis_log
    from service.model.checkpoint import open_checkpoint

    async def run() -> None:
        opened = open_checkpoint(settings.checkpoint, verify=False)
        log = redis_log(settings, opened)
        try:
            await work(CatalogHistory(log), opened)
        except RequestError as error:
            raise StartupError(f"--redis-url: {error.detail}") from None
        finally:
            await log.close()

    asyncio.run(run())


async def _catalog(history: Any, opened: Any, version: int | None) -> Any:
    """The catalogue of a version, as a replica would have it."""
    from service.catalog import Catalog

    found = await history.at(version)
    catalog = Catalog.from_checkpoint(opened)
    return catalog.advance(catalog.differences(found.state, found.version), found.version).catalog


def _row(item: Any) -> dict[str, Any]:
    record = item.item
    row = {"item_id": record.item_id, "title": record.title, "description": record.description}
    return row | {"attributes": dict(record.attributes)}


def _shown(entry: Any) -> str:
    from datetime import UTC, datetime

    from service.stores.item_log import CODE_MARK

    at = datetime.fromtimestamp(entry.seconds, UTC).isoformat(timespec="seconds")
    sid = ",".join(map(str, entry.sid))
    name, title = entry.item_id.removeprefix(CODE_MARK), entry.item.title if entry.item else ""
    return f"{entry.version:>8}  {at}  {entry.op:6}  {name}  [{sid}]  {title}"
