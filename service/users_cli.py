"""Commands about users and keys: ``histories load``, ``feedback export``, ``keys create|list|retire``.

They parse and print; the work is elsewhere, and imported only by the command that needs it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from service.errors import RequestError, SettingsError, StartupError
from service.settings import Settings, masked_url

histories_app = typer.Typer(no_args_is_help=True, help="Users' histories in Redis.")
feedback_app = typer.Typer(no_args_is_help=True, help="What was recommended, and what users did.")
keys_app = typer.Typer(no_args_is_help=True, help="API keys: only their digests are kept.")

RedisUrl = Annotated[str, typer.Option("--redis-url", help=str(Settings.model_fields["redis_url"].description))]
KeyFile = Annotated[Path, typer.Option("--file", help="TOML file of the keys; the setting `api_keys_file` names it")]
ClientName = Annotated[str, typer.Option("--name", help="who uses the key, e.g. shop-backend")]


@histories_app.command("load")
def load_histories(
    file: Annotated[Path, typer.Option("--file", help='JSONL: {"user_id": "..", "items": [[item_id, seconds], ..]}')],
    redis_url: RedisUrl,
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


@feedback_app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", help="file to write: .jsonl or .parquet")],
    redis_url: RedisUrl,
    everything: Annotated[bool, typer.Option("--all", help="kinds of weight 0 (impressions, ...) too")] = False,
) -> None:
    """Write the events that Redis keeps, as interactions for `groundrec train --interactions FILE`."""
    done = asyncio.run(_export(out, redis_url, everything))
    typer.echo(f"{out}: {done.rows} events; left out: {done.repeated} repeated, {done.weightless} of weight 0")


async def _export(out: Path, redis_url: str, everything: bool) -> Any:
    from service.feedback_export import export_feedback
    from service.redis_stores import redis_feedback

    log = redis_feedback(url=redis_url, timeout_seconds=10.0)
    try:
        return await export_feedback(log, out, everything=everything)
    except RequestError as error:
        raise StartupError(f"--redis-url {masked_url(redis_url)}: {error.detail}") from None
    finally:
        await log.close()


@keys_app.command("create")
def create(
    file: KeyFile,
    name: ClientName,
    scopes: Annotated[str, typer.Option("--scopes", help="recommend,events,items or admin (all); for a new name")] = "",
    requests_per_second: Annotated[float | None, typer.Option(help="the client's quota on each replica")] = None,
    burst: Annotated[int | None, typer.Option(help="requests at once; default: one second's worth")] = None,
) -> None:
    """Make a key and print it, once. For a known name: a second key, so that the client can change over."""
    from service.api_keys import SCOPES, Scope
    from service.key_file import add_key

    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    for scope in wanted:
        if scope not in SCOPES:
            raise SettingsError(f"--scopes: {scope[:40]} is none of {', '.join(SCOPES)}")
    made = add_key(file, name, cast(list[Scope], wanted), requests_per_second, burst)
    typer.echo(made.key)
    typer.echo(f"{name} has {len(made.entry.sha256)} of at most 2 keys in {file}; this one is shown only now", err=True)


@keys_app.command("list")
def list_keys(file: KeyFile) -> None:
    """Who has keys, and for what."""
    from service.key_file import read_keys

    for entry in read_keys(file):
        rate = "no quota" if entry.requests_per_second is None else f"{entry.requests_per_second:g}/s"
        typer.echo(f"{entry.name}: {','.join(entry.scopes)}; {len(entry.sha256)} key(s); {rate}")


@keys_app.command("retire")
def retire(file: KeyFile, name: ClientName) -> None:
    """Drop the older of a client's two keys, or its only one."""
    from service.key_file import retire_key

    before = retire_key(file, name)
    typer.echo(f"{name}: {len(before.sha256) - 1} key(s) left in {file}")
