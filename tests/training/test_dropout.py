"""Dropout falls on inputs and on every branch of every layer, in training only; the seed decides what falls."""

import pytest
import torch
from torch import nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from training.dropout import BRANCHES, add_dropout, seed_dropout

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    "gemma": (GemmaForCausalLM, GemmaConfig),
}


def decoder(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model, config = FAMILIES[family]
    made: PreTrainedModel = model(config(**SIZES, attn_implementation="eager"))  # type: ignore[no-untyped-call]
    return made


def hidden(lm: PreTrainedModel, seed: int) -> torch.Tensor:
    seed_dropout(seed, 3, 0)
    inputs = torch.linspace(-1, 1, 2 * 5 * 16).view(2, 5, 16)
    found: torch.Tensor = lm.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_branch_of_every_family_drops_in_training_only(family: str) -> None:
    lm = decoder(family)
    plain = hidden(lm.train(False), 0)
    fallen: list[float] = []
    with add_dropout(lm, 0.5):
        for layer in lm.base_model.get_submodule("layers").children():
            for name in BRANCHES:
                # registered after the dropout, so that it sees what that made
                layer.get_submodule(name).register_forward_hook(lambda *call: fallen.append(zeros(call[2])))
        assert torch.equal(hidden(lm.train(False), 0), plain) and max(fallen) < 0.2
        fallen.clear()
        one, same, other = hidden(lm.train(), 0), hidden(lm, 0), hidden(lm, 1)
        assert len(fallen) == 3 * 4 and min(fallen) > 0.3
    assert torch.equal(one, same) and not torch.equal(one, other) and not torch.equal(one, plain)
    assert torch.equal(hidden(lm.train(), 0), plain)


def test_inputs_drop_too() -> None:
    lm = decoder("llama")
    met: list[float] = []
    with add_dropout(lm, 0.5):
        first: nn.Module = lm.base_model.get_submodule("layers.0")
        first.register_forward_pre_hook(lambda _, given: met.append(zeros(given[0])))
        hidden(lm.train(), 0)
    assert 0.3 < met[0] < 0.7


def zeros(made: torch.Tensor | tuple[torch.Tensor, ...]) -> float:
    tensor = made if isinstance(made, torch.Tensor) else made[0]
    return float((tensor == 0).float().mean())


def test_steps_and_processes_drop_other_values() -> None:
    drawn = []
    for seed, step, rank in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0)):
        seed_dropout(seed, step, rank)
        drawn.append(float(torch.rand(())))
    assert len(set(drawn[:4])) == 4 and drawn[0] == drawn[4]
