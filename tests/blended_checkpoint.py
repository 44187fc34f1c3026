"""A checkpoint whose answers are blended, made from one whose model answers alone."""

import dataclasses
from pathlib import Path

from safetensors.torch import save_file

from service.model.blend import BlendWeights, Neighbours
from service.model.checkpoint import NEIGHBOURS, Checkpoint, open_checkpoint, seal
from service.model.checkpoint_files import read_manifest


def blended_with(folder: Path, neighbours: Neighbours, weights: BlendWeights) -> Checkpoint:
    """The checkpoint in ``folder`` with these neighbours and weights, sealed anew."""
    save_file(neighbours.tensors(), folder / NEIGHBOURS)
    fields = read_manifest(folder).model_dump(exclude={"files", "model_version"})
    seal(folder, fields | {"blend": dataclasses.asdict(weights)})
    return open_checkpoint(folder)
