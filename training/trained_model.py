"""The grounded LM put together from what the stages made, and its trained weights on disk.

Only what fine-tuning moves is stored: the decoder, the SID rows and the memory; the text vocabulary is the backbone's.

Shapes: N SID tokens, D model width.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.model.grounded_lm import GroundedLM
from service.model.prefix_memory import PrefixMemory
from service.model.semantic_ids import SidSpace
from training.backbone import Backbone

WEIGHTS = "weights.safetensors"
_FROZEN = ("lm.lm_head.weight", "lm.model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What a grounded LM is made of; ``sid_head`` for an untied head only, ``memory`` if the recipe has one."""

    backbone: Backbone
    space: SidSpace
    prefix_ids: tuple[int, ...]
    sid_rows_ND: Tensor
    sid_head_ND: Tensor | None
    memory: PrefixMemory | None

    def assemble(self) -> GroundedLM:
        """The module in the backbone's dtype; the backbone itself becomes part of it."""
        dtype = self.backbone.input_rows.dtype
        head = None if self.sid_head_ND is None else self.sid_head_ND.to(dtype).clone()
        memory = None if self.memory is None else self.memory.to(dtype)
        rows = self.sid_rows_ND.to(dtype).clone()
        return GroundedLM(self.backbone.model, self.space, self.prefix_ids, rows, head, memory)


def save_weights(model: GroundedLM, folder: Path) -> None:
    """Write what training moved."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in _FROZEN}
    save_file(tensors, folder / WEIGHTS)


def load_weights(model: GroundedLM, folder: Path) -> GroundedLM:
    """Put trained weights into an assembled model and freeze it."""
    missing, unexpected = model.load_state_dict(load_file(folder / WEIGHTS), strict=False)
    if unexpected or not set(missing) <= set(_FROZEN):
        raise ValueError(f"{folder / WEIGHTS}: does not fit the model: {missing} missing, {unexpected} unexpected")
    return model.requires_grad_(False).eval()


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that recipes and manifests spell so."""
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def text_dtype(dtype: torch.dtype) -> str:
    """The dtype as manifests spell it."""
    return str(dtype).removeprefix("torch.")
