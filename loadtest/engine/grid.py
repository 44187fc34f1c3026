"""What is measured: model shapes, worlds, cells and the presets made of them. Data only.

The weights are random, for speed depends on shapes alone. ``smollm2-135m`` is the whole model; ``qwen3-0.6b-8l`` has
Qwen3-0.6B's width, heads and vocabulary, but 8 of its 28 layers, so that a run ends in minutes on two cores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from loadtest.synthetic_checkpoint import Backbone, SyntheticCheckpoint

SID_ROW_STD = 0.1
_LLAMA = {"rms_norm_eps": 1e-5, "rope_theta": 100_000.0, "tie_word_embeddings": True}
_QWEN3 = {"head_dim": 128, "rope_theta": 1_000_000.0, "tie_word_embeddings": True}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _sizes(width: int, inner: int, layers: int, heads: int, kv_heads: int, positions: int = 8192) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        **_TOKENS,
    }


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A backbone's family and sizes and its SID space; ``note`` says what it stands for."""

    family: str
    text_tokens: int
    config: Mapping[str, Any]
    levels: int
    codes: int
    note: str


SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        "tiny": ModelShape(
            "llama", 200, _LLAMA | _sizes(64, 128, 2, 2, 1) | {"initializer_range": 0.15}, 3, 64, "for tests"
        ),
        "smollm2-135m": ModelShape(
            "llama", 49_152, _LLAMA | _sizes(576, 1536, 30, 9, 3), 4, 256, "SmolLM2-135M, all 30 layers"
        ),
        "smollm2-4l": ModelShape("llama", 49_152, _LLAMA | _sizes(576, 1536, 4, 9, 3), 4, 256, "SmolLM2, 4 layers"),
        "qwen3-0.6b-8l": ModelShape(
            "qwen3", 151_936, _QWEN3 | _sizes(1024, 3072, 8, 16, 8), 4, 256, "Qwen3-0.6B, 8 of 28 layers"
        ),
        "qwen3-1.7b": ModelShape(
            "qwen3", 151_936, _QWEN3 | _sizes(2048, 6144, 28, 16, 8), 3, 8192, "Qwen3-1.7B, NVIDIA's and FlashRec's"
        ),
    }
)


@dataclass(frozen=True, slots=True)
class World:
    """One model, one catalogue, one number format."""

    shape: str
    items: int
    dtype: str = "bfloat16"
    max_prompt: int = 520

    @property
    def name(self) -> str:
        """As it stands in results and folder names."""
        return f"{self.shape}-{self.items}-{self.dtype}"

    @property
    def checkpoint(self) -> SyntheticCheckpoint:
        """What to build for it."""
        shape = SHAPES[self.shape]
        config = dict(shape.config)
        backbone = Backbone(shape.family, shape.text_tokens, config, self.dtype, SID_ROW_STD)
        return SyntheticCheckpoint(backbone, shape.levels, shape.codes, self.items, self.max_prompt // shape.levels)


@dataclass(frozen=True, slots=True)
class Cell:
    """``batch`` users at once, each with ``beam`` beams after ``prompt`` tokens, answered by each contender in turn.

    ``mode`` ("eager" or "compiled") is how the vLLM engines run; the torch contenders always run eager.
    """

    world: World
    mode: str
    batch: int
    beam: int
    prompt: int
    contenders: tuple[str, ...]
    rounds: int = 3

    @property
    def name(self) -> str:
        """As it stands in results."""
        return f"{self.world.name} {self.mode} batch {self.batch} beam {self.beam} prompt {self.prompt}"


@dataclass(frozen=True, slots=True)
class Preset:
    """What a run consists of; None leaves a section out.

    ``agreement``: a small fp32 world where rankings are compared; ``costs``: the cells around which filters, the prefix
    cache and the profile are measured; ``served``: the world whose starts and inserts are timed; ``catalogues``: sizes
    at which the constraint alone is timed.
    """

    cells: tuple[Cell, ...]
    agreement: Cell | None = None
    costs: tuple[Cell, ...] = ()
    served: World | None = None
    catalogues: tuple[int, ...] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes its cells run in."""
        return tuple(dict.fromkeys(cell.mode for cell in self.cells))


ALL = ("ours", "line", "one_token", "vllm_beam", "torch_loop", "hf_generate")
NO_HF = ALL[:-1]
FAST = ("ours", "line")
WITNESS = ("ours", "torch_loop")
MODES = ("eager", "compiled")


def _standard() -> Preset:
    main = World("smollm2-135m", 1_000_000)
    qwen = World("qwen3-0.6b-8l", 1_000_000)
    cells = []
    for mode in MODES:
        cells += [
            # the most telling first: a run that is cut short has them
            Cell(main, mode, 8, 50, 160, NO_HF),
            Cell(main, mode, 1, 50, 160, ALL),
            Cell(main, mode, 8, 20, 160, FAST + ("one_token",)),
            Cell(main, mode, 1, 10, 160, NO_HF),
            Cell(main, mode, 8, 50, 60, FAST),
            Cell(main, mode, 8, 50, 500, FAST),
            Cell(main, mode, 8, 200, 160, FAST),
            Cell(main, mode, 32, 20, 160, FAST),
            Cell(main, mode, 32, 50, 160, FAST),
            Cell(qwen, mode, 1, 50, 160, FAST),
            Cell(qwen, mode, 8, 50, 160, FAST + ("one_token",)),
        ]
    cells += [Cell(World("smollm2-135m", items), "eager", 8, 50, 160, FAST[:1]) for items in (10**4, 10**5, 10**7)]
    return Preset(
        cells=tuple(cells),
        agreement=Cell(World("smollm2-4l", 10_000, "float32"), "eager", 4, 20, 160, WITNESS),
        costs=tuple(Cell(main, mode, 8, 50, 160, FAST, rounds=5) for mode in MODES),
        served=main,
        catalogues=(10**4, 10**5, 10**6, 10**7),
    )


def _full() -> Preset:
    standard = _standard()
    worlds = [World("smollm2-135m", 10**6), World("qwen3-0.6b-8l", 10**6)]
    cells = [
        Cell(world, mode, batch, beam, prompt, ALL if batch == 1 else NO_HF)
        for world in worlds
        for mode in MODES
        for prompt in (60, 160, 500)
        for batch in (1, 8, 32)
        for beam in (10, 20, 50, 200)
    ]
    cells += [
        Cell(World(shape, items), mode, batch, 50, 160, FAST)
        for shape in ("smollm2-135m", "qwen3-0.6b-8l")
        for items in (10**4, 10**5, 10**7)
        for mode in MODES
        for batch in (1, 8, 32)
    ]
    return Preset(tuple(cells), standard.agreement, standard.costs, standard.served, standard.catalogues)


def _smoke() -> Preset:
    world = World("tiny", 2_000, "float32", max_prompt=72)
    cell = Cell(world, "eager", 2, 8, 60, ALL, rounds=2)
    agreement, costs = (replace(cell, contenders=some) for some in (WITNESS, FAST))
    return Preset((cell,), agreement, (costs,), world, (2_000,))


def _gpu(prompts: tuple[int, ...], beam: int, batches: tuple[int, ...], items: int) -> Preset:
    world = World("qwen3-1.7b", items, max_prompt=max(prompts) + 21)
    cells = [
        Cell(world, mode, batch, beam, prompt, FAST + ("one_token", "vllm_beam"), rounds=5)
        for mode in MODES
        for prompt in prompts
        for batch in batches
    ]
    return Preset(tuple(cells), costs=(cells[0],), served=world)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "smoke": _smoke(),
        "standard": _standard(),
        "full": _full(),
        "gpu-nvidia": _gpu((1000, 5000), 256, (1, 8), 10**7),
        "gpu-flashrec": _gpu((303,), 50, (1, 8, 32), 10**7),
    }
)
