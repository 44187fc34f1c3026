"""The offline commands: train, evaluate, ground, inspect.

People read standard error; standard output ends with one JSON object. Everything that goes wrong on purpose is one
line and exit code 2.
"""

import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from service.errors import StartupError
from training.config import Recipe, load_recipe
from training.demo_cli import demo
from training.errors import PeerError, TrainingError
from training.progress import QuietReporter, Reporter
from training.stages import write_json, write_whole

if TYPE_CHECKING:
    from training.pipeline import Pipeline
    from training.processes import Processes

app = typer.Typer(help="Train, evaluate and inspect checkpoints.", no_args_is_help=True)
memory_app = typer.Typer(help="Carry a prefix memory from one run to another.", no_args_is_help=True)
app.add_typer(memory_app, name="memory")

P = ParamSpec("P")
R = TypeVar("R")
RecipeName = Annotated[str, typer.Option("--recipe", help="A recipe's name, or a TOML file.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Override a key: finetune.epochs=2. Repeatable.")]
Seed = Annotated[int | None, typer.Option(help="Overrides the recipe's seed.")]
OtherRecipe = Annotated[str | None, typer.Option("--recipe", help="Instead of the experiment's own: other data.")]
CacheDir = Annotated[Path, typer.Option(help="Where fetched wheels and converted models are kept.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
CACHE_DIR = Path("~/.cache/groundrec/wheels")


def _one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _quieten_transformers()
        try:
            return command(*args, **kwargs)
        except PeerError as error:
            typer.echo(f"stopped: {error}", err=True)
            raise typer.Exit(2) from error
        except (TrainingError, StartupError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error

    return run


def _quieten_transformers() -> None:
    # imported late, like everything heavy here: --help should answer at once
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


app.command()(_one_line_errors(demo))


@app.command()
@_one_line_errors
def train(
    out: Annotated[Path, typer.Option(help="The run's folder; an interrupted run goes on where it stopped.")],
    recipe: RecipeName = "quickstart",
    items: Annotated[Path | None, typer.Option(help="Items table (CSV, JSONL, Parquet).")] = None,
    interactions: Annotated[Path | None, typer.Option(help="Interactions table.")] = None,
    on_defect: Annotated[str | None, typer.Option(help="refuse or skip defective rows.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print counts, steps, memory and time; train nothing.")
    ] = False,
    seed: Seed = None,
    settings: Settings = None,
    cache_dir: CacheDir = CACHE_DIR,
    json_file: Json = None,
) -> None:
    """Train a checkpoint from data to OUT/checkpoint; several processes by torchrun --module service train ..."""
    from training.processes import joined, named

    tables = {"items": items, "interactions": interactions, "on_defect": on_defect}
    with joined() as processes:
        if processes.is_first:
            wanted = _recipe(recipe, settings, seed, tables)
            _estimate(wanted, cache_dir, json_file) if dry_run else _train(wanted, out, cache_dir, json_file, processes)
        elif not dry_run:
            with named(processes):
                _follow(_recipe(recipe, settings, seed, tables), out, cache_dir, processes)


def _estimate(recipe: Recipe, cache_dir: Path, json_file: Path | None) -> None:
    from training.dry_run import estimate

    _print(estimate(recipe, cache_dir.expanduser(), Reporter()), json_file)


def _train(recipe: Recipe, out: Path, cache_dir: Path, json_file: Path | None, processes: "Processes") -> None:
    pipeline = _pipeline(recipe, out, cache_dir, Reporter(), processes)
    metrics = pipeline.train()
    pipeline.show(metrics)
    _print({"checkpoint": str(out / "checkpoint"), **metrics}, json_file)


def _follow(recipe: Recipe, out: Path, cache_dir: Path, processes: "Processes") -> None:
    _pipeline(recipe, out, cache_dir, QuietReporter(), processes).follow()


def _recipe(name: str, settings: list[str] | None, seed: int | None, data: Mapping[str, Any]) -> Recipe:
    given = [f"data.{key}={json.dumps(str(value))}" for key, value in data.items() if value is not None]
    given += [] if seed is None else [f"seed={seed}"]
    return load_recipe(name, [*(settings or []), *given])


def _pipeline(
    recipe: Recipe, out: Path, cache_dir: Path, reporter: Reporter, processes: "Processes | None" = None
) -> "Pipeline":
    from training.pipeline import Pipeline
    from training.processes import ALONE
    from training.stages import RunFolder

    processes = processes or ALONE
    run = RunFolder(out, reporter, read_only=not processes.is_first)
    return Pipeline(recipe, run, cache_dir.expanduser(), processes)


def _print(figures: Mapping[str, Any], json_file: Path | None) -> None:
    typer.echo(json.dumps(figures))  # first: a file that cannot be written must not cost hours of figures
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(json_file, figures)


@app.command()
@_one_line_errors
def ground(
    out: Annotated[Path, typer.Option("--run", help="The run's folder.")],
    recipe: RecipeName = "quickstart",
    seed: Seed = None,
    settings: Settings = None,
    cache_dir: CacheDir = CACHE_DIR,
    json_file: Json = None,
) -> None:
    """Make the stages up to grounding; report what it reached and its share of training's time and samples."""
    pipeline = _pipeline(_recipe(recipe, settings, seed, {}), out, cache_dir, Reporter())
    _print(pipeline.grounding_cost(), json_file)


@app.command()
@_one_line_errors
def evaluate(
    run: Annotated[Path | None, typer.Option(help="A finished run; its checkpoint is evaluated.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint.")] = None,
    settings: Settings = None,
    cache_dir: CacheDir = CACHE_DIR,
    json_file: Json = None,
) -> None:
    """Evaluate a checkpoint on the held-out items of the data it was trained on."""
    folder = checkpoint or (run / "checkpoint" if run else None)
    if folder is None:
        raise TrainingError("evaluate needs --run DIR or --checkpoint DIR")
    from training.checkpoint_evaluation import evaluate_checkpoint

    reporter = Reporter()
    figures, shown = evaluate_checkpoint(folder, settings or [], cache_dir.expanduser(), reporter)
    for table in shown:
        reporter.show(table)
    _print(figures, json_file)


@app.command()
@_one_line_errors
def calibrate(
    run: Annotated[Path | None, typer.Option(help="A run that held items out (data.hold_out).")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint whose source has items it never met.")] = None,
    into: Annotated[
        list[Path] | None, typer.Option(help="Write the dial into this checkpoint too. Repeatable.")
    ] = None,
    places: Annotated[int, typer.Option(help="Length of the lists that are judged.", min=1)] = 10,
    warm_loss: Annotated[
        float, typer.Option(help="Relative loss of hit rate that known items may suffer.", min=0)
    ] = 0.02,
    max_share: Annotated[float, typer.Option(help="Share of places new items may take.", min=0, max=1)] = 0.2,
    users: Annotated[
        int | None, typer.Option(help="Users of known items that are asked; all if not given.", min=1)
    ] = 3000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Fit and measure, write nothing.")] = False,
    settings: Settings = None,
    cache_dir: CacheDir = CACHE_DIR,
    json_file: Json = None,
) -> None:
    """Fit how new items are scored on items held out of training, and write it into the checkpoint."""
    folder = checkpoint or (run / "checkpoint" if run else None)
    if folder is None:
        raise TrainingError("calibrate needs --run DIR or --checkpoint DIR")
    from training.calibrate import CalibrationOptions
    from training.checkpoint_calibration import calibrate_checkpoint, open_study

    reporter = Reporter()
    study = open_study(folder, settings or [], cache_dir.expanduser(), reporter, users)
    options = CalibrationOptions(places, warm_loss, max_share)
    figures, shown = calibrate_checkpoint(study, options, into or [], dry_run=dry_run)
    for table in shown:
        reporter.show(table)
    _print(figures, json_file)


@app.command()
@_one_line_errors
def inspect(
    checkpoint: Annotated[Path, typer.Option(help="A checkpoint.")],
    json_file: Json = None,
) -> None:
    """Show how a checkpoint's SIDs are spread: codes used, entropy, buckets, the fullest prefixes."""
    from training.sid_statistics import sid_statistics

    reporter = Reporter()
    figures, shown = sid_statistics(checkpoint)
    reporter.show(shown)
    _print(figures, json_file)


@memory_app.command()
@_one_line_errors
def export(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="The tables as they were before fine-tuning.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Save a run's prefix memory alone, for prefix_memory.tables of another recipe on the same SIDs."""
    from training.prefix_memory.tables import export_tables

    config = export_tables(run, out, pretrained=pretrained).config
    sizes = {"heads": config.heads, "width": config.width, "rows": list(config.rows)}
    _print({"tables": str(out), "bytes": out.stat().st_size, **sizes}, json_file)


@app.command()
@_one_line_errors
def experiment(
    name: Annotated[str, typer.Argument(help="An experiment's name, or its TOML file.")],
    out: Annotated[Path, typer.Option(help="The experiment's folder; a stopped one goes on where it was.")],
    arms: Annotated[list[str] | None, typer.Option("--arm", help="Only these arms. Repeatable.")] = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Only these seeds. Repeatable.")] = None,
    recipe: OtherRecipe = None,
    settings: Settings = None,
    results: Annotated[
        Path | None, typer.Option(help="Write table (.md), figures (.json) and plot (.svg) here.")
    ] = None,
    cache_dir: CacheDir = CACHE_DIR,
    json_file: Json = None,
) -> None:
    """Train and compare an experiment's arms over its seeds; every run writes its row as it ends."""
    from training.experiments.experiment import load_experiment
    from training.experiments.results import write_results
    from training.experiments.run import ExperimentRun

    more = tuple(settings or ())
    reporter = Reporter()
    wanted = load_experiment(name, more, recipe)
    run = ExperimentRun(wanted, out, cache_dir.expanduser(), reporter, more)
    rows = run.run(arms or (), seeds or ())
    summary = write_results(run, rows, results)
    _print({"experiment": name, "rows": len(rows), "arms": summary}, json_file)


@app.command()
@_one_line_errors
def report(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or an experiment's.")],
    out: Annotated[Path | None, typer.Option(help="The page [default: FOLDER/report.html].")] = None,
    name: Annotated[str | None, typer.Option("--experiment", help="The folder is this experiment's.")] = None,
    recipe: OtherRecipe = None,
    settings: Settings = None,
    json_file: Json = None,
) -> None:
    """Write one HTML page about a run or an experiment; it opens offline."""
    page = out or folder / "report.html"
    write_whole(page, _experiment_page(name, folder, tuple(settings or ()), recipe) if name else _run_page(folder))
    _print({"report": str(page), "bytes": page.stat().st_size}, json_file)


def _run_page(folder: Path) -> str:
    from training.report.run_report import run_report

    return run_report(folder)


def _experiment_page(name: str, folder: Path, more: tuple[str, ...], recipe: str | None) -> str:
    from training.experiments.experiment import load_experiment
    from training.experiments.results import write_results
    from training.experiments.run import ExperimentRun
    from training.report.experiment_report import experiment_report

    wanted = load_experiment(name, more, recipe)
    run = ExperimentRun(wanted, folder, CACHE_DIR, Reporter(), more)
    return experiment_report(wanted.question, wanted.reference, write_results(run, run.rows(), None))
