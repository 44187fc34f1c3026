"""Commands about the models of a running replica: ``models list|open|share|close``. They speak to it over HTTP."""

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from service.errors import ClientError, StartupError

models_app = typer.Typer(no_args_is_help=True, help="Models of a running replica: beside each other, in the shadow.")

UrlOption = Annotated[str, typer.Option("--url", help="a running replica")]
KeyOption = Annotated[str | None, typer.Option("--key", help="API key with the scope admin")]
LOCAL = "http://127.0.0.1:8000"
POLL_SECONDS = 0.5


@models_app.command("list")
def list_models(url: UrlOption = LOCAL, key: KeyOption = None) -> None:
    """Show every model, its share of the traffic and how it fares."""

    def work(client: Any) -> None:
        for model in client.models():
            typer.echo(_shown(model))

    _run(url, key, work)


@models_app.command("open")
def open_model(
    checkpoint: Annotated[str, typer.Argument(help="folder below the replica's models_root")],
    share: Annotated[float, typer.Option(help="traffic beside the others' shares")] = 0.0,
    shadow: Annotated[bool, typer.Option("--shadow", help="rank what others answer, for the metrics only")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="when ready: take all traffic, close the others")] = False,
    wait_seconds: Annotated[float, typer.Option(min=0, help="how long to wait until it is ready")] = 600.0,
    url: UrlOption = LOCAL,
    key: KeyOption = None,
) -> None:
    """Open a checkpoint beside those that are served, and wait until it answers."""

    def work(client: Any) -> None:
        opening = client.open_model(checkpoint, share=share, shadow=shadow, replace=replace)
        deadline = time.monotonic() + wait_seconds
        while (model := _found(client, opening.checkpoint)).state == "opening":
            if time.monotonic() > deadline:
                raise StartupError(f"{checkpoint} is still being opened; look again with `groundrec models list`")
            time.sleep(POLL_SECONDS)
        if model.state == "failed":
            raise StartupError(f"{checkpoint} could not be opened: {model.fault}")
        typer.echo(_shown(model))

    _run(url, key, work)


@models_app.command("share")
def share_traffic(
    model_version: Annotated[str, typer.Argument(help="as `models list` shows it")],
    share: Annotated[float, typer.Argument(help="traffic beside the others' shares; 0 for none")],
    shadow: Annotated[bool | None, typer.Option("--shadow/--no-shadow", help="rank what others answer")] = None,
    url: UrlOption = LOCAL,
    key: KeyOption = None,
) -> None:
    """Give a model another share of the users."""
    _run(url, key, lambda client: typer.echo(_shown(client.change_model(model_version, share=share, shadow=shadow))))


@models_app.command("close")
def close_model(
    model_version: Annotated[str, typer.Argument(help="as `models list` shows it")],
    url: UrlOption = LOCAL,
    key: KeyOption = None,
) -> None:
    """Take a model out; it answers what it has begun."""
    _run(url, key, lambda client: typer.echo(_shown(client.close_model(model_version))))


def _run(url: str, key: str | None, work: Callable[[Any], None]) -> None:
    from service.client import RecClient

    try:
        with RecClient(url, api_key=key, timeout_seconds=30.0) as client:
            work(client)
    except ClientError as error:
        raise StartupError(f"--url {url}: {error}") from None


def _found(client: Any, checkpoint: str) -> Any:
    """The newest word on a checkpoint: it may have failed before."""
    return [model for model in client.models() if model.checkpoint == checkpoint][-1]


def _shown(model: Any) -> str:
    if model.state in ("opening", "failed"):
        return f"{model.state:8} {model.checkpoint}" + (f": {model.fault}" if model.fault else "")
    traits = [f"share {model.share:g}", *(["shadow"] if model.shadow else []), "well" if model.well else "SILENT"]
    return (
        f"{model.state:8} {model.model_version}  {', '.join(traits)}, {model.inflight} at work, "
        f"catalogue {model.catalog_version}  {model.checkpoint}"
    )
