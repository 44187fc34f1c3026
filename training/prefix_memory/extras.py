"""Optional arms of the prefix memory: a gate on the memory vector, and a bias on the next code's logits.

A tied output head does not see the memory of the prefix that it continues; the bias lets the memory speak there (as
ComeIR does). Both start without a voice of their own: the gate nearly open for everything, the bias at zero. The
service knows neither, so `export.py` refuses a model that has one.

Shapes: M memory width, K codes.
"""

import torch
from torch import Tensor, nn

from service.model.prefix_memory import PrefixMemory

OPEN = 4.0


class Gate(nn.Module):
    """Scales every dimension of a memory vector [..., M] by a sigmoid of the vector; starts at 98 %."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, OPEN)

    def forward(self, memory: Tensor) -> Tensor:
        """The gated vector."""
        return memory * torch.sigmoid(self.linear(memory))


def add_gate(memory: PrefixMemory) -> None:
    """Put a gate before W_out."""
    memory.gate = Gate(memory.config.width)


def add_output_bias(memory: PrefixMemory, codes: int) -> None:
    """Give every level but the first a map from the memory of the codes before it to a bias [K], at zero."""
    memory.output_bias = nn.ParameterList(
        nn.Parameter(torch.zeros(codes, memory.config.width)) for _ in range(memory.config.levels - 1)
    )
