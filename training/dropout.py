"""Dropout for a decoder while it is fine-tuned: on its inputs, and on what each attention and MLP adds.

What is dropped is a function of seed, step and process alone, so that a stopped run goes on as if it had not been.
Hooks do it and leave the module as it was once they are removed; outside training mode they do nothing.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

BRANCHES = ("self_attn", "mlp")


def add_dropout(lm: PreTrainedModel, share: float) -> ExitStack:
    """Drop ``share`` of the inputs' and branches' values in training mode; closing the stack ends it."""
    decoder = lm.base_model

    def drop_inputs(module: nn.Module, _: Any, given: Mapping[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        return (), {**given, "inputs_embeds": F.dropout(given["inputs_embeds"], share, module.training)}

    def drop_branch(module: nn.Module, _: Any, made: Any) -> Any:
        if isinstance(made, Tensor):
            return F.dropout(made, share, module.training)
        return (F.dropout(made[0], share, module.training), *made[1:])

    stack = ExitStack()
    _remembered(stack, decoder.register_forward_pre_hook(drop_inputs, with_kwargs=True))
    for layer in decoder.get_submodule("layers").children():
        for name in BRANCHES:
            _remembered(stack, layer.get_submodule(name).register_forward_hook(drop_branch))
    return stack


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """What the next forward pass drops; other processes and steps drop other values."""
    torch.manual_seed(int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]) >> 1)


def _remembered(stack: ExitStack, handle: RemovableHandle) -> None:
    stack.callback(handle.remove)
