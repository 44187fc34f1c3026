"""The commands under ``groundrec bench``: each measures something and prints one JSON object on its last line."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Benchmarks; see loadtest/README.md.")


@app.callback()
def bench() -> None:
    """Benchmarks; see loadtest/README.md."""


@app.command()
def engine(
    preset: Annotated[str, typer.Option(help="smoke, standard, full, gpu-nvidia or gpu-flashrec")] = "standard",
    work: Annotated[Path, typer.Option(help="checkpoints, logs and finished parts; a second call goes on")] = Path(
        "runs/bench-engine"
    ),
    only: Annotated[
        str, typer.Option(help="sections, comma-separated; warm: fill the compile caches")
    ] = "agreement,cells,costs,served,constraint",
    modes: Annotated[str, typer.Option(help="eager, compiled or both")] = "eager,compiled",
    minutes: Annotated[float, typer.Option(help="begin no new part after this; call again to go on")] = 1e9,
    threads: Annotated[int, typer.Option(min=1, help="threads of every contender")] = 1,
    kv_gib: Annotated[float, typer.Option(help="KV cache of every vLLM engine, GiB")] = 1.0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    table: Annotated[Path | None, typer.Option(help="write the results as Markdown here")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write rows and verdicts here")] = None,
) -> None:
    """Ours beside vLLM's beam, one-token requests, Hugging Face, a torch loop and the hardware line."""
    from loadtest.engine.bench import Bench, BenchOptions, write_results

    options = BenchOptions(
        preset=preset,
        work=work,
        only=tuple(only.split(",")),
        modes=tuple(modes.split(",")),
        minutes=minutes,
        threads=threads,
        kv_gib=kv_gib,
        device=device,
        say=lambda line: typer.echo(line, err=True),
    )
    bench = Bench(options)
    typer.echo(write_results(bench, bench.run(), json_file, table))


@app.command("new-items")
def new_items(
    trained: Annotated[int, typer.Option(min=1, help="items the model was trained with")] = 10_000,
    new: Annotated[str, typer.Option(help="numbers of new items, comma-separated")] = "100,1000,10000",
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """What scoring every new item beside the beam costs a request."""
    from loadtest.bench_new_items import measure

    figures = json.dumps(measure(trained, [int(count) for count in new.split(",")]))
    if json_file is not None:
        json_file.write_text(figures + "\n", encoding="utf-8")
    typer.echo(figures)


@app.command()
def training(
    layers: Annotated[int, typer.Option(min=1, help="decoder layers of SmolLM2-135M's shape")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="rounds that count; one more warms up")] = 7,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps a round")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="threads of every contender")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Fine-tuning throughput: ours beside Hugging Face's plain Trainer."""
    from loadtest.bench_training import measure

    figures = json.dumps(measure(layers, rounds, steps, threads))
    if json_file is not None:
        json_file.write_text(figures + "\n", encoding="utf-8")
    typer.echo(figures)


@app.command("prefix-memory")
def prefix_memory(
    rows: Annotated[str, typer.Option(help="rows of a table, comma-separated")] = "4096,2000000",
    layers: Annotated[int, typer.Option(min=1, help="decoder layers of SmolLM2-135M's shape")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="rounds that count; one more warms up")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps a round")] = 2,
    starts: Annotated[int, typer.Option(min=1, help="how often all processes are started anew")] = 4,
    threads: Annotated[int, typer.Option(min=1, help="threads of every contender")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Fine-tuning with prefix memory beside fine-tuning without: the time that it adds."""
    from loadtest.bench_prefix_memory import measure

    figures = json.dumps(measure([int(count) for count in rows.split(",")], layers, rounds, steps, threads, starts))
    if json_file is not None:
        json_file.write_text(figures + "\n", encoding="utf-8")
    typer.echo(figures)


if __name__ == "__main__":
    app()
