"""Kinds of memory and pre-trainings by the names that recipes use."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from training.errors import RecipeError, TrainingError
from training.prefix_memory.base import Lessons, Pretraining, PretrainOptions, PretrainReport, start
from training.prefix_memory.classification import pretrain_classification
from training.prefix_memory.controls import ExactPrefixMemory, FullPrefixMemory, TransformerMemory
from training.prefix_memory.generative_retrieval import pretrain_generative_retrieval
from training.prefix_memory.joint_lm import pretrain_joint_lm
from training.progress import Progress

UNATTACHED = 1


def draw_only(
    memory: PrefixMemory, lessons: Lessons, options: PretrainOptions, progress: Progress, /
) -> PretrainReport:
    """No pre-training: random tables, rows counted."""
    start(memory, lessons, options.seed)
    progress(1, 1, "")
    return PretrainReport((), (), 0.0)


PRETRAININGS: Mapping[str, Pretraining] = {
    "classification": pretrain_classification,
    "generative_retrieval": pretrain_generative_retrieval,
    "joint_lm": pretrain_joint_lm,
    "none": draw_only,
}


def build(kind: str, config: PrefixMemoryConfig, codes_NL: NDArray[np.int64]) -> PrefixMemory:
    """An empty memory that belongs to no model yet: `PrefixMemory.attach` gives it a W_out.

    Raises:
        RecipeError: the sizes do not suit the kind.
    """
    if kind == "hashed":
        return PrefixMemory(config, UNATTACHED)
    if kind == "full_prefix":
        return FullPrefixMemory(config, UNATTACHED)
    if kind == "exact":
        return ExactPrefixMemory(config, torch.from_numpy(codes_NL).long(), UNATTACHED)
    try:
        return TransformerMemory(config, UNATTACHED)
    except ValueError as error:
        raise RecipeError(f"prefix_memory.kind {kind!r}: {error}; raise prefix_memory.max_rows or width") from error


def kind_of(memory: PrefixMemory) -> str:
    """The name that `build` knows it by."""
    kinds = {FullPrefixMemory: "full_prefix", ExactPrefixMemory: "exact", TransformerMemory: "transformer"}
    return kinds.get(type(memory), "hashed")


def check_servable(memory: PrefixMemory | None) -> None:
    """Let only memories pass that the service can run.

    Raises:
        TrainingError: names the key, and what a checkpoint needs.
    """
    if memory is None:
        return
    kind = kind_of(memory)
    extras = {"kind": kind != "hashed", "gate": memory.gate is not None, "output_bias": memory.output_bias is not None}
    for name, present in extras.items():
        if present:
            what = f"kind {kind!r}" if name == "kind" else name
            raise TrainingError(
                f"prefix_memory.{what} is for experiments, the service cannot run it: metrics stand in "
                'stages/evaluate; a checkpoint needs kind = "hashed" without gate and output_bias'
            )
