"""An open-loop load on ``POST /recommend`` of a service on this machine.

    python -m loadtest.open_loop --url http://127.0.0.1:8000 --rate 5 --seconds 20 --users users.txt

Arrivals are fixed beforehand; a request that is due is sent, whatever became of those before it. The last line is one
JSON object, written to ``--json`` too.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import typer

from loadtest.arrivals import poisson_arrivals
from loadtest.summary import Outcome, summarise

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


async def run_load(
    url: str, users: list[str], rate: float, seconds: float, seed: int, timeout: float
) -> dict[str, Any]:
    """Send the load and summarise what came back."""
    due = poisson_arrivals(rate, seconds, seed)
    chosen = np.random.default_rng(seed).integers(0, len(users), len(due))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) as client:
        start = time.perf_counter()
        sends = [_send(client, users[user], start + at) for user, at in zip(chosen, due, strict=True)]
        outcomes = await asyncio.gather(*sends)
    return {"rate": rate, "seconds": seconds, "seed": seed, **summarise(outcomes, seconds)}


async def _send(client: httpx.AsyncClient, user_id: str, due: float) -> Outcome:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    try:
        response = await client.post("/recommend", json={"user_id": user_id, "num_results": 10})
    except httpx.HTTPError:
        return Outcome(time.perf_counter() - due, 0, False)
    degraded = response.status_code == 200 and bool(response.json()["degraded"])
    return Outcome(time.perf_counter() - due, response.status_code, degraded)


def main(
    url: Annotated[str, typer.Option(help="the service, on a loopback address")] = "http://127.0.0.1:8000",
    rate: Annotated[float, typer.Option(help="requests a second")] = 5.0,
    seconds: Annotated[float, typer.Option(help="how long")] = 20.0,
    users: Annotated[Path | None, typer.Option(help="file of user ids, one a line; default 1..943")] = None,
    seed: Annotated[int, typer.Option(help="seed of arrivals and users")] = 0,
    timeout: Annotated[float, typer.Option(help="seconds until a request counts as unanswered")] = 30.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the summary here too")] = None,
) -> None:
    """Run the load and print its summary."""
    if urlsplit(url).hostname not in LOOPBACK:
        raise typer.BadParameter(f"{url} is not on this machine; load is sent to loopback only", param_hint="--url")
    ids = users.read_text().split() if users else [str(user) for user in range(1, 944)]
    line = json.dumps(asyncio.run(run_load(url, ids, rate, seconds, seed, timeout)))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
