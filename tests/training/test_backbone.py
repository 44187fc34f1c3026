"""The extended model loads everywhere with the rows it was given, and nothing else in its folder."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from service.model.prompt import PromptTemplate
from service.model.semantic_ids import SidSpace
from service.model.title_tokens import text_token_ids
from tests.training.tiny_backbone import WIDTH, backbone, saved
from training.backbone import Backbone, add_sid_tokens, check_positions, extend_and_save, load_backbone
from training.errors import RecipeError, TrainingError

FAMILIES = ("llama", "qwen2", "qwen3", "gemma")
LEVELS, CODES = 3, 8


def rows(space: SidSpace, seed: int) -> torch.Tensor:
    return torch.randn(space.num_tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def extended(folder: Path, made: Backbone) -> tuple[SidSpace, torch.Tensor, torch.Tensor | None]:
    space = add_sid_tokens(made, LEVELS, CODES)
    sid_rows, sid_head = rows(space, 1), None if made.tied else rows(space, 2)
    extend_and_save(made, space, sid_rows, sid_head, folder, torch.float32)
    return space, sid_rows, sid_head


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_padded_vocabulary_survives_save_and_load(tmp_path: Path, family: str, tied: bool) -> None:
    # LlamaFactory issue 7997, transformers issue 45236: padded or resized heads came back tied, cut or initialised
    made = backbone(family, tied=tied)
    space, sid_rows, sid_head = extended(tmp_path / "lm", made)
    again = load_backbone(str(tmp_path / "lm"), cache_dir=tmp_path, num_layers=None, dtype=torch.float32)
    block = slice(space.first_token_id, space.end_token_id)
    assert again.tied == tied
    assert len(again.input_rows) == len(again.output_rows) == again.model.config.vocab_size == 128
    assert torch.equal(again.input_rows[block], sid_rows)
    assert torch.equal(again.output_rows[block], sid_rows if sid_head is None else sid_head)
    assert torch.equal(again.input_rows[: space.first_token_id], made.input_rows[: space.first_token_id])
    assert torch.equal(again.output_rows[: space.first_token_id], made.output_rows[: space.first_token_id])
    assert not again.input_rows[space.end_token_id :].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_text_logits_are_those_of_the_original(tmp_path: Path, family: str) -> None:
    made = backbone(family)
    space, _, _ = extended(tmp_path / "lm", made)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "lm", attn_implementation="eager")
    token_BT = torch.tensor([[5, 9, 3]])
    with torch.inference_mode():
        before, after = made.model(token_BT).logits, again(token_BT).logits
    assert torch.allclose(before, after[..., : space.first_token_id], atol=1e-6)
    assert again.config.architectures == [type(made.model).__name__]


def test_the_folder_holds_json_and_one_safetensors_only(tmp_path: Path) -> None:
    made = backbone()
    made.tokenizer.chat_template = "{{ messages }}"
    extended(tmp_path / "lm", made)
    names = {path.name for path in (tmp_path / "lm").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["lm"]


def test_the_tokenizer_knows_every_sid_token_where_the_space_says(tmp_path: Path) -> None:
    space, _, _ = extended(tmp_path / "lm", backbone())
    again = AutoTokenizer.from_pretrained(tmp_path / "lm")
    assert again.convert_tokens_to_ids(space.token_strings()) == list(range(space.first_token_id, space.end_token_id))


def test_the_backbone_itself_does_not_change(tmp_path: Path) -> None:
    made = backbone(tied=False)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    vocabulary = made.model.config.vocab_size
    extended(tmp_path / "lm", made)
    assert made.model.config.vocab_size == vocabulary
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())


def test_sid_tokens_follow_the_tokenizer_where_the_model_is_padded_already(tmp_path: Path) -> None:
    made = backbone(rows=200)
    space, sid_rows, _ = extended(tmp_path / "lm", made)
    again = load_backbone(str(tmp_path / "lm"), cache_dir=tmp_path, num_layers=None, dtype=torch.float32)
    assert space.first_token_id < 200
    assert len(again.input_rows) == 256
    assert torch.equal(again.input_rows[space.first_token_id : space.end_token_id], sid_rows)


def test_sid_tokens_that_exist_already_are_refused_by_name() -> None:
    made = backbone(rows=128)
    made.tokenizer.add_tokens(["<b_3>"])
    with pytest.raises(TrainingError, match="'<b_3>'"):
        add_sid_tokens(made, LEVELS, CODES)


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused() -> None:
    made = backbone()
    made.tokenizer.add_tokens(["one too many"])
    with pytest.raises(TrainingError, match="76 tokens, the model fewer rows"):
        add_sid_tokens(made, LEVELS, CODES)


def test_a_sid_token_in_a_title_is_plain_text() -> None:
    made = backbone()
    title = "Toy <a_1> Story"
    plain = text_token_ids(made.tokenizer, title)
    space = add_sid_tokens(made, LEVELS, CODES)
    assert made.tokenizer("<a_1>").input_ids == [space.level_start(0) + 1]
    assert text_token_ids(made.tokenizer, title) == plain
    assert made.tokenize([title], 5) == [plain[:5]]
    assert max(plain) < space.first_token_id


def test_only_the_first_layers_are_kept(tmp_path: Path) -> None:
    folder = saved(tmp_path / "qwen3", backbone("qwen3"))
    cut = load_backbone(str(folder), cache_dir=tmp_path, num_layers=1, dtype=torch.bfloat16)
    assert cut.model.config.num_hidden_layers == len(cut.model.config.layer_types) == 1
    assert cut.model(torch.tensor([[1, 2]])).logits.dtype == torch.bfloat16
    with pytest.raises(TrainingError, match=r"choose 1\.\.2"):
        load_backbone(str(folder), cache_dir=tmp_path, num_layers=3, dtype=torch.float32)


def test_what_is_no_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="neither 'smollm2-135m' nor a model folder"):
        load_backbone(str(tmp_path), cache_dir=tmp_path, num_layers=None, dtype=torch.float32)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(TrainingError, match="'gpt2' is none of llama"):
        load_backbone(str(tmp_path), cache_dir=tmp_path, num_layers=None, dtype=torch.float32)


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = backbone()
    space = add_sid_tokens(made, LEVELS, CODES)
    with pytest.raises(TrainingError, match="shape"):
        extend_and_save(made, space, torch.zeros(3, WIDTH), None, tmp_path / "lm", torch.float32)
    with pytest.raises(TrainingError, match="tied"):
        extend_and_save(made, space, rows(space, 1), rows(space, 2), tmp_path / "lm", torch.float32)
    assert not (tmp_path / "lm").exists()


def test_a_prompt_longer_than_the_backbone_reads_is_refused_before_training() -> None:
    made = backbone()
    made.model.config.max_position_embeddings = 64
    space = add_sid_tokens(made, LEVELS, CODES)
    check_positions(made, PromptTemplate(space, (1,), 20))
    with pytest.raises(RecipeError, match=r"prompt\.max_items: 20 items of 4 tokens need 84 positions, .* has 64"):
        check_positions(made, PromptTemplate(space, (1,), 20, title_tokens=1))
