"""The presets ask for what the documentation promises, and every cell can be run."""

import pytest

from loadtest.engine.bench import BenchOptions, chosen_preset
from loadtest.engine.contender import KIND_OF
from loadtest.engine.grid import PRESETS, SHAPES, Preset, World
from loadtest.engine.targets import judge
from service.errors import StartupError
from tests.unit.loadtest.engine_fakes import options

ALL = pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))


@ALL
def test_every_cell_names_known_contenders_and_measures_ours(preset: Preset) -> None:
    for cell in (*preset.cells, *preset.costs):
        assert set(cell.contenders) <= set(KIND_OF)
        assert "ours" in cell.contenders
        assert cell.rounds >= 1


@ALL
def test_every_prompt_and_beam_fits_the_checkpoint_of_its_world(preset: Preset) -> None:
    for cell in preset.cells:
        shape, checkpoint = SHAPES[cell.world.shape], cell.world.checkpoint
        assert cell.prompt <= len((1, 5, 9)) + checkpoint.max_items * shape.levels
        line = cell.world.max_prompt + shape.levels * (cell.beam + 1)
        assert line <= shape.config["max_position_embeddings"]
        assert cell.world.items <= shape.codes**shape.levels // 2


@ALL
def test_no_cell_is_measured_twice(preset: Preset) -> None:
    names = [cell.name for cell in preset.cells]
    assert len(set(names)) == len(names)


def test_full_covers_the_whole_grid() -> None:
    cells = PRESETS["full"].cells
    assert {cell.batch for cell in cells} == {1, 8, 32}
    assert {cell.beam for cell in cells} >= {10, 50, 200}
    assert {cell.prompt for cell in cells} == {60, 160, 500}
    assert {cell.world.items for cell in cells} == {10**4, 10**5, 10**6, 10**7}
    assert {SHAPES[cell.world.shape].family for cell in cells} == {"llama", "qwen3"}
    assert {cell.mode for cell in cells} == {"eager", "compiled"}


@pytest.mark.parametrize("name", ["standard", "full"])
def test_committed_presets_measure_what_every_target_needs(name: str) -> None:
    preset = PRESETS[name]
    assert preset.agreement and preset.costs and preset.served and 10**6 in preset.catalogues
    cells = [cell for cell in preset.cells if cell.world == preset.served]
    places = {(cell.mode, cell.batch, cell.beam, cell.prompt): set(cell.contenders) for cell in cells}
    for mode in ("eager", "compiled"):
        assert places[mode, 8, 50, 160] >= {"ours", "line", "one_token", "vllm_beam"}
        assert "hf_generate" in places[mode, 1, 50, 160]
        assert all("line" in places[mode, batch, beam, 160] for batch in (8, 32) for beam in (20, 50))
    assert judge([], preset.modes, "main")


def test_a_preset_can_be_cut_to_one_mode() -> None:
    preset = chosen_preset(options(preset="standard", modes=("eager",)))
    assert {cell.mode for cell in (*preset.cells, *preset.costs)} == {"eager"}


@pytest.mark.parametrize(
    ("flag", "wrong"),
    [
        ("--preset", options(preset="huge")),
        ("--only", options(only=("cells", "tea"))),
        ("--modes", options(modes=("fast",))),
        ("--only", options(only=())),
    ],
)
def test_what_does_not_exist_is_refused_by_the_name_of_its_flag(flag: str, wrong: BenchOptions) -> None:
    with pytest.raises(StartupError, match=flag):
        chosen_preset(wrong)


def test_worlds_of_other_sizes_have_other_folders() -> None:
    assert World("tiny", 10).name != World("tiny", 100).name
