"""A recipe: everything that decides what is trained, as one TOML file that can be diffed.

Unknown keys are refused with the nearest known name, because a misspelt key would train something else in silence. It
checks values that can be checked without data; it does not run anything.
"""

import copy
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from training.errors import RecipeError

Baseline = Literal["popularity", "co_occurrence", "text_neighbours", "transitions", "sasrec", "tiger", "tiger_memory"]

LAST_RESORT_BOOST = 1e-4
RECIPES = Path(__file__).parent / "recipes"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataRecipe(_Part):
    """Where items and interactions come from.

    ``hold_out`` is the share of items kept out of the whole run, to measure and calibrate items newer than the model;
    ``hold_out_kinds`` keeps out every item with one of these attributes, each ``FIELD=VALUE``.
    """

    source: str = "movielens-100k"
    items: Path | None = None
    interactions: Path | None = None
    on_defect: Literal["refuse", "skip"] = "refuse"
    hold_out: float = Field(default=0.0, ge=0, lt=1)
    hold_out_by: Literal["random", "newest"] = "random"
    hold_out_kinds: tuple[str, ...] = ()

    @property
    def holds_out(self) -> bool:
        """Whether the source has items that the run never meets."""
        return self.hold_out > 0 or bool(self.hold_out_kinds)


class EmbeddingRecipe(_Part):
    """What turns item text into vectors."""

    encoder: str = "minilm"
    max_tokens: int = Field(default=128, ge=1)


class SidRecipe(_Part):
    """How vectors become semantic IDs, and the gates on them.

    ``behaviour`` is the weight (0..1) of co-occurrence beside text when the training items' SIDs are made.
    ``spare_codes`` more codes a level get tokens but no items: a running service may open them for items of a kind that
    the codebooks do not know.
    """

    method: Literal["rkmeans", "rqvae"] = "rkmeans"
    levels: int = Field(default=3, ge=1, le=8)
    codes: int = Field(default=256, ge=2, le=8192)
    policy: Literal["reassign", "extra_level", "bucket"] = "reassign"
    min_usage: float = Field(default=0.5, ge=0, le=1)
    max_collision_rate: float = Field(default=0.5, ge=0, le=1)
    behaviour: float = Field(default=0.0, ge=0, lt=1)
    spare_codes: int = Field(default=0, ge=0, le=1024)

    @property
    def all_codes(self) -> int:
        """Codes of a level that have tokens: trained and spare ones."""
        return self.codes + self.spare_codes


class BackboneRecipe(_Part):
    """Which language model, and how many of its first layers (None: all).

    ``gradient_checkpointing`` computes each layer again in the backward pass: less memory, a third more time, the same
    weights.
    """

    spec: str = "smollm2-135m"
    layers: int | None = Field(default=None, ge=1)
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    gradient_checkpointing: bool = False


class GroundingRecipe(_Part):
    """How the new tokens get their first place; ``layers`` of the backbone are used (None: all)."""

    objective: str = "lm"
    layers: int | None = Field(default=None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)


class MemoryRecipe(_Part):
    """Kind and sizes of the prefix memory, how its tables are pre-trained, and optional arms.

    ``tables`` is a file of `groundrec memory export` that is attached instead of pre-training. ``output_std`` above 0
    starts W_out near zero instead of at zero. ``sparse`` keeps optimiser state for touched rows only, for tables whose
    rows mostly stand still in a step. Only ``kind = "hashed"`` without ``gate`` and ``output_bias`` can be served.
    """

    enabled: bool = True
    kind: Literal["hashed", "exact", "full_prefix", "transformer"] = "hashed"
    orders: int = Field(default=3, ge=1)
    heads: int = Field(default=4, ge=1)
    width: int = Field(default=128, ge=1)
    max_rows: int = Field(default=4096, ge=1)
    inject_levels: tuple[int, ...] | None = None
    output_std: float = Field(default=0.0, ge=0)
    pretraining: Literal["classification", "generative_retrieval", "joint_lm", "none"] = "classification"
    pretrain_steps: int = Field(default=200, ge=0)
    pretrain_batch_size: int = Field(default=512, ge=1)
    pretrain_lr: float = Field(default=0.01, gt=0)
    tables: Path | None = None
    sparse: bool = False
    gate: bool = False
    output_bias: bool = False


class PromptRecipe(_Part):
    """The fixed text before a history, how many items a history keeps, and how much of each item's title it shows.

    ``title_tokens`` = 0 shows SIDs alone; each token of a title is one more to read in training and serving.
    """

    prefix: str = Field(default="A customer chose these items in order:", min_length=1)
    max_items: int = Field(default=20, ge=1)
    title_tokens: int = Field(default=0, ge=0, le=512)


class FinetuneRecipe(_Part):
    """Fine-tuning on next-item generation; ``stride`` targets to a window (None: half of the history).

    Against overfitting: ``item_dropout`` is the share of interactions that an epoch leaves out, others each time;
    ``dropout`` the share of values left out inside the decoder (`training.dropout`); with ``average`` above 0 a moving
    average of the weights, of that decay a step, is validated and kept.
    ``alignment_steps`` of text <-> SID pairs come first, through the whole model; ``alignment_weight`` > 0 adds the
    loss of such a batch to every step.
    """

    epochs: int = Field(default=4, ge=1)
    batch_size: int = Field(default=64, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    memory_lr_factor: float = Field(default=5.0, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup_steps: int = Field(default=20, ge=0)
    stride: int | None = Field(default=None, ge=1)
    item_dropout: float = Field(default=0.0, ge=0, lt=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    average: float = Field(default=0.0, ge=0, lt=1)
    patience: int = Field(default=2, ge=1)
    valid_users: int = Field(default=300, ge=1)
    save_every: int = Field(default=50, ge=1)
    alignment_steps: int = Field(default=0, ge=0)
    alignment_weight: float = Field(default=0.0, ge=0)
    alignment_batch_size: int = Field(default=32, ge=1)
    alignment_text_tokens: int = Field(default=28, ge=1)


class BlendRecipe(_Part):
    """Answers blended with what kept company with the history and whose text is near it (`service.model.blend`).

    The weights are fitted on ``users`` validation events. ``company`` is what came next (a linear model with ``ridge``,
    `training.transitions`) or whom the same users chose. Of each trained item ``neighbours`` are kept; ``history``
    items of a user count, each step back by ``decay``; ``temperature`` is that of text cosines.
    """

    enabled: bool = True
    company: Literal["transitions", "co_occurrence"] = "transitions"
    ridge: float = Field(default=2.0, gt=0)
    neighbours: int = Field(default=100, ge=1)
    history: int = Field(default=20, ge=1)
    decay: float = Field(default=0.9, gt=0, le=1)
    temperature: float = Field(default=0.05, gt=0)
    users: int = Field(default=2000, ge=1)


class EvaluateRecipe(_Part):
    """What is measured, and beside which other recommenders; those that must be trained first cost minutes."""

    beam_width: int = Field(default=100, ge=1, le=512)
    ks: tuple[int, ...] = (1, 5, 10, 20, 50, 100)
    bootstrap_samples: int = Field(default=1000, ge=100)
    max_users: int | None = Field(default=None, ge=1)
    baselines: tuple[Baseline, ...] = ("popularity", "co_occurrence", "text_neighbours", "transitions")


class ServingRecipe(_Part):
    """Defaults of the service; ``exclude_seen`` "auto" follows the share of repeats in the data.

    ``new_items`` is the dial of `service.model.new_items` until `groundrec calibrate` fits one; false leaves new items
    to the smoothing inside the beam, whose ``smoothing_boost`` is otherwise a last resort (None: chosen accordingly).
    """

    beam_width: int = Field(default=50, ge=1, le=512)
    exclude_seen: bool | Literal["auto"] = "auto"
    smoothing_temperature: float = Field(default=0.05, gt=0)
    smoothing_boost: float | None = Field(default=None, gt=0)
    new_items: bool = True
    new_item_bias: float = 0.0
    new_item_text: float = 1.0
    new_item_model: float = 0.0
    new_item_temperature: float = Field(default=0.1, gt=0)
    new_item_decay: float = Field(default=0.7, gt=0, le=1)
    new_item_history: int = Field(default=10, ge=1)
    new_item_share: float = Field(default=0.2, ge=0, le=1)

    @property
    def smoothing(self) -> dict[str, Any]:
        """The manifest's part on new items."""
        boost = self.smoothing_boost or (LAST_RESORT_BOOST if self.new_items else 2.0)
        names = ("bias", "text", "model", "temperature", "decay", "history")
        dial: dict[str, Any] = {name: getattr(self, f"new_item_{name}") for name in names}
        dial |= {"max_share": self.new_item_share, "fitted_on": "the recipe"}
        return {
            "temperature": self.smoothing_temperature,
            "boost": boost,
            "new_items": dial if self.new_items else None,
        }


class Recipe(_Part):
    """One training run from data to checkpoint."""

    seed: int = 0
    data: DataRecipe = DataRecipe()
    embedding: EmbeddingRecipe = EmbeddingRecipe()
    sids: SidRecipe = SidRecipe()
    backbone: BackboneRecipe = BackboneRecipe()
    grounding: GroundingRecipe = GroundingRecipe()
    prefix_memory: MemoryRecipe = MemoryRecipe()
    prompt: PromptRecipe = PromptRecipe()
    finetune: FinetuneRecipe = FinetuneRecipe()
    blend: BlendRecipe = BlendRecipe()
    evaluate: EvaluateRecipe = EvaluateRecipe()
    serving: ServingRecipe = ServingRecipe()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.evaluate.beam_width < max(self.evaluate.ks):
            raise ValueError(f"evaluate.beam_width must be at least the largest of evaluate.ks {self.evaluate.ks}")
        if (self.finetune.stride or 1) > self.prompt.max_items:
            raise ValueError("finetune.stride must not exceed prompt.max_items")
        return self

    @property
    def stride(self) -> int:
        """Targets to a window."""
        return self.finetune.stride or max(1, self.prompt.max_items // 2)


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or from a TOML file, with ``key=value`` overrides.

    Raises:
        RecipeError: names the file, the key and, for an unknown key, the nearest known one.
    """
    path = _find(name_or_path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(f"recipe {path}: cannot be read: {error}") from error
    return parse_recipe(with_overrides(raw, overrides), str(path))


def with_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Plain recipe data with ``key=value`` overrides, values as TOML or else as text.

    Raises:
        RecipeError: an override has another form.
    """
    changed = copy.deepcopy(dict(raw))
    for override in overrides:
        _apply(changed, override)
    return changed


def parse_recipe(raw: Mapping[str, Any], origin: str) -> Recipe:
    """A recipe from plain data.

    Raises:
        RecipeError: as `load_recipe`.
    """
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = tuple(str(part) for part in first["loc"])
        hint = _nearest(place) if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise RecipeError(f"recipe {origin}: {'.'.join(place) or 'recipe'}: {hint}") from error


def recipe_names() -> list[str]:
    """The recipes that come with the project."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    if name_or_path not in recipe_names():
        raise RecipeError(f"recipe {name_or_path!r} is unknown; choose {', '.join(recipe_names())} or a .toml file")
    return RECIPES / f"{name_or_path}.toml"


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"--set {override!r}: expected key=value, e.g. finetune.epochs=2")
    *parents, last = key.strip().split(".")
    for parent in parents:
        raw = raw.setdefault(parent, {})
        if not isinstance(raw, dict):
            raise RecipeError(f"--set {override!r}: {parent!r} has no keys below it")
    raw[last] = _value(value.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nearest(place: Sequence[str]) -> str:
    known: list[str] = list(Recipe.model_fields)
    for part in place[:-1]:
        annotation = Recipe.model_fields[part].annotation
        known = list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, _Part) else []
    close = difflib.get_close_matches(place[-1], known, 1, 0.0)
    return f"unknown key; did you mean {close[0]!r}?" if close else "unknown key"
