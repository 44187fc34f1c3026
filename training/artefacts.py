"""What each stage before fine-tuning writes into its folder, and how the stages behind it read that back.

Safetensors and JSON only. It knows neither the order of the stages nor when one is skipped.

Shapes: N items, L levels, K codes, E embedding width, D model width.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.model.blend import BlendWeights, Neighbours
from service.model.checkpoint import NEIGHBOURS
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from service.model.quantizer import ResidualQuantizer
from service.model.semantic_ids import SidSpace
from training.behaviour import fit_with_behaviour
from training.config import MemoryRecipe, Recipe
from training.embed import embed_items, texts
from training.evaluate import Ranks
from training.fit_semantic_ids import fit_semantic_ids
from training.grounding.base import GroundingContext, GroundingResult
from training.grounding.diagnostics import principal_plane, row_diagnostics
from training.grounding.registry import objective
from training.prefix_memory.base import Lessons, PretrainOptions
from training.prefix_memory.extras import add_gate, add_output_bias
from training.prefix_memory.registry import PRETRAININGS, build
from training.prefix_memory.tables import load_tables, save_tables
from training.progress import Reporter
from training.stages import write_json
from training.training_data import TrainingData

EMBEDDING = "embedding.safetensors"
CODES = "codes.safetensors"
QUANTIZER = "quantizer.safetensors"
ROWS = "rows.safetensors"
MEMORY = "memory.safetensors"
DIAGNOSTICS = "diagnostics.json"
PLANES = "planes.safetensors"
RANKS = "ranks.safetensors"
BLEND = "blend.json"


def write_data(folder: Path, data: TrainingData) -> None:
    """What was read: counts, licence, repeats, defects."""
    dataset = data.dataset
    facts = {
        "name": dataset.name,
        "license_note": dataset.license_note,
        "items": len(dataset.items),
        "users": len(dataset.sequences),
        "interactions": dataset.num_interactions,
        "test_users": len(data.split.test),
        "repeat_share": data.split.repeat_share,
        "defects": dict(dataset.defects.counts),
    }
    write_json(folder / "data.json", facts)


def write_embedding(folder: Path, recipe: Recipe, data: TrainingData, encoder: Path, reporter: Reporter) -> None:
    """Item embeddings."""
    with reporter.task("embed") as progress:
        embedding_NE = embed_items(data.dataset.items, encoder, recipe.embedding.max_tokens, progress)
    save_file({"embedding": torch.from_numpy(embedding_NE)}, folder / EMBEDDING)


def read_embedding(folder: Path) -> NDArray[np.float32]:
    """Float32 [N, E]."""
    embedding: NDArray[np.float32] = load_file(folder / EMBEDDING)["embedding"].numpy()
    return embedding


def write_sids(
    folder: Path, recipe: Recipe, data: TrainingData, embedding_NE: NDArray[np.float32], reporter: Reporter
) -> None:
    """The quantiser, the items' codes and their report.

    Raises:
        GateError: the codes collapsed or collide too often.
    """
    part = recipe.sids
    fit = (
        fit_with_behaviour(embedding_NE, data.split.train, part, recipe.seed)
        if part.behaviour
        else fit_semantic_ids(
            embedding_NE, method=part.method, levels=part.levels, codes=part.codes, policy=part.policy, seed=recipe.seed
        )
    )
    for line in fit.report.lines():
        reporter.say(f"sids: {line}")
    fit.report.gate(min_usage=part.min_usage, max_collision_rate=part.max_collision_rate)
    save_file({"codes": torch.from_numpy(fit.codes_NL)}, folder / CODES)
    save_file(fit.quantizer.tensors(), folder / QUANTIZER)
    write_json(folder / "report.json", fit.report.as_dict())


def read_codes(folder: Path) -> NDArray[np.int64]:
    """Int64 [N, L]."""
    codes: NDArray[np.int64] = load_file(folder / CODES)["codes"].numpy()
    return codes


def read_quantizer(folder: Path) -> ResidualQuantizer:
    """The frozen quantiser."""
    return ResidualQuantizer.from_tensors(load_file(folder / QUANTIZER))


def write_rows(
    folder: Path, recipe: Recipe, context: GroundingContext, state_file: Path | None, reporter: Reporter
) -> GroundingResult:
    """Grounded rows of the new tokens, and what they cost."""
    part = recipe.grounding
    with reporter.task(f"grounding ({part.objective})") as progress:
        result = objective(part.objective, **part.options).ground(context, progress, state_file=state_file)
    rows = {"sid_rows": result.sid_rows} | ({} if result.sid_head is None else {"sid_head": result.sid_head})
    save_file({name: tensor.detach().contiguous() for name, tensor in rows.items()}, folder / ROWS)
    told = ("samples", "steps", "wall_seconds", "cpu_seconds", "losses")
    write_json(folder / "grounding.json", {"objective": part.objective} | {n: getattr(result, n) for n in told})
    start = result.sid_rows if result.start_rows is None else result.start_rows
    write_diagnostics(folder, context, {"start": start, "grounded": result.sid_rows})
    return result


def write_diagnostics(folder: Path, context: GroundingContext, rows: Mapping[str, Tensor]) -> None:
    """What rows float [L * K, D] look like, in figures and as a picture, by the moment they are of."""
    described = {
        moment: row_diagnostics(rows_ND, context.space, context.vocabulary_VD, context.codebooks_LKE)
        for moment, rows_ND in rows.items()
    }
    write_json(folder / DIAGNOSTICS, described)
    planes = {moment: principal_plane(rows_ND).contiguous() for moment, rows_ND in rows.items()}
    save_file(planes, folder / PLANES)


def read_planes(folder: Path) -> dict[str, Tensor]:
    """The rows in their two widest directions by moment, float32 [L * K, 2]; none where a run is older than them."""
    return load_file(folder / PLANES) if (folder / PLANES).exists() else {}


def read_rows(folder: Path) -> tuple[Tensor, Tensor | None]:
    """Input rows float32 [L * K, D], and output rows for an untied head."""
    stored = load_file(folder / ROWS)
    return stored["sid_rows"], stored.get("sid_head")


def memory_config(part: MemoryRecipe, space: SidSpace) -> PrefixMemoryConfig:
    """The memory that a recipe asks for."""
    return PrefixMemoryConfig.sized(
        space,
        orders=part.orders,
        heads=part.heads,
        width=part.width,
        max_rows=part.max_rows,
        inject_levels=part.inject_levels,
    )


def write_memory(
    folder: Path, recipe: Recipe, data: TrainingData, codes_NL: NDArray[np.int64], reporter: Reporter
) -> None:
    """Tables and touch counts, pre-trained here or brought along (``prefix_memory.tables``).

    Raises:
        TrainingError: the tables that were brought along cannot be read, or belong to other SIDs.
    """
    part = recipe.prefix_memory
    if part.tables is not None:
        memory = load_tables(part.tables, codes_NL)
        reporter.say(f"prefix memory: tables of {part.tables}")
        write_json(folder / "memory.json", {"tables": str(part.tables)})
    else:
        space = SidSpace(codes_NL.shape[1], recipe.sids.codes, 0)
        memory = build(part.kind, memory_config(part, space), codes_NL)
        lessons = Lessons(codes_NL, data.split.train, texts(data.dataset.items))
        options = PretrainOptions(
            part.pretrain_steps, part.pretrain_batch_size, part.pretrain_lr, recipe.seed, recipe.prompt.max_items
        )
        memory.sparse_gradients = part.sparse
        with reporter.task(f"prefix memory ({part.pretraining})") as progress:
            report = PRETRAININGS[part.pretraining](memory, lessons, options, progress)
        reporter.say(f"prefix memory: next code {_shares(report.accuracy)}, best possible {_shares(report.ceiling)}")
        write_json(folder / "memory.json", asdict(report))
    save_tables(memory, codes_NL, folder / MEMORY)


def read_memory(
    folder: Path, recipe: Recipe, codes_NL: NDArray[np.int64], space: SidSpace, model_width: int
) -> PrefixMemory:
    """The memory that the stage made, with a fresh W_out and what the recipe adds to it."""
    part = recipe.prefix_memory
    memory = load_tables(folder / MEMORY, codes_NL)
    memory.attach(model_width, part.output_std, recipe.seed)
    memory.sparse_gradients = part.sparse
    if part.gate:
        add_gate(memory)
    if part.output_bias:
        add_output_bias(memory, space.codes)
    return memory


def write_ranks(folder: Path, ranks: Ranks) -> None:
    """Each test user's target rank by way and recommender, so that runs can be compared in pairs."""
    tensors = {
        f"{way}/{name}": torch.from_numpy(rank_U)
        for way, by_name in ranks.by_way.items()
        for name, rank_U in by_name.items()
    }
    save_file(tensors, folder / RANKS)


def read_ranks(folder: Path) -> dict[str, NDArray[np.int64]]:
    """Int64 [U] by ``way/name``."""
    return {name: tensor.numpy() for name, tensor in load_file(folder / RANKS).items()}


def _shares(values: Sequence[float]) -> str:
    return "/".join(f"{value:.3f}" for value in values) or "not measured"


def write_blend(folder: Path, neighbours: Neighbours, weights: BlendWeights) -> None:
    """The items' neighbours and the fitted weights."""
    save_file(neighbours.tensors(), folder / NEIGHBOURS)
    write_json(folder / BLEND, asdict(weights))


def read_blend(folder: Path) -> tuple[Neighbours, BlendWeights] | None:
    """The same, or None where nothing is blended."""
    path = folder / BLEND
    if not path.exists():
        return None
    weights = BlendWeights(**json.loads(path.read_text(encoding="utf-8")))
    return Neighbours.from_tensors(load_file(folder / NEIGHBOURS)), weights
