"""The coefficients that a manifest carries for the model's neighbours: plain numbers, so that it is read without torch.

What they weigh is told, with the equations, in `blend` and in `new_items`, which also take them from here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlendWeights:
    """The coefficients of `blend`'s equation, in the order (model, company, text), and what they were fitted with.

    ``reach`` is the share of events whose item is among the candidates; ``history`` how many items h_k there are.

    Raises:
        ValueError: temperature, decay, history or reach do not make sense.
    """

    model: float
    company: float
    text: float
    reach: float = 1.0
    temperature: float = 0.05
    decay: float = 0.8
    history: int = 5

    def __post_init__(self) -> None:
        if self.temperature <= 0 or not 0 < self.decay <= 1 or self.history < 1 or not 0 < self.reach <= 1:
            raise ValueError(f"temperature > 0, 0 < decay <= 1, history >= 1 and 0 < reach <= 1 are needed, got {self}")


@dataclass(frozen=True, slots=True)
class NewItemDial:
    """The coefficients of `new_items`' equation, the temperature of the cosines, and how many history items count.

    Raises:
        ValueError: temperature, decay or history do not make sense.
    """

    bias: float
    text: float
    model: float
    temperature: float = 0.1
    decay: float = 0.8
    history: int = 10

    def __post_init__(self) -> None:
        if self.temperature <= 0 or not 0 < self.decay <= 1 or self.history < 1:
            raise ValueError(f"temperature > 0, 0 < decay <= 1 and history >= 1 are needed, got {self}")
