"""The manifest of a servable checkpoint: what the files are, how they were made, and their sha256.

The manifest is the contract between training and serving. It is data only; reading and checking files is
`checkpoint`'s business.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.model.fitted_coefficients import BlendWeights, NewItemDial

SCHEMA_VERSION: Literal[4] = 4
READABLE_VERSIONS = (1, 2, 3, 4)  # 1 knew nothing of `NewItemPart`, 2 of spare codes, 3 of titles in prompts and blends


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Part):
    """One file of the checkpoint."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class SidPart(_Part):
    """The SID token space.

    Of the ``codes`` of each level the last ``spare_codes`` have tokens but no codebook vector: no item was trained with
    one, and a running service may open them.
    """

    levels: int = Field(ge=1, le=8)
    codes: int = Field(ge=2, le=8192)
    first_token_id: int = Field(ge=0)
    collision_policy: Literal["reassign", "extra_level", "bucket"]
    collision_rate: float = Field(ge=0, le=1)
    spare_codes: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _leaves_codes(self) -> Self:
        if self.spare_codes > self.codes - 2:
            raise ValueError(f"spare_codes {self.spare_codes} leave fewer than 2 of {self.codes} codes")
        return self


class PromptPart(_Part):
    """How a history becomes a prompt; of each item's title the first ``title_tokens`` tokens follow its SID."""

    prefix_ids: tuple[int, ...] = Field(min_length=1)
    max_items: int = Field(ge=1, le=100_000)
    title_tokens: int = Field(default=0, ge=0, le=512)


class PrefixMemoryPart(_Part):
    """Sizes of the prefix memory."""

    heads: int = Field(ge=1)
    width: int = Field(ge=1)
    rows: tuple[int, ...] = Field(min_length=1)
    inject_levels: tuple[int, ...]
    seed: int


class LanguageModelPart(_Part):
    """The backbone in ``lm/``."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    dtype: Literal["bfloat16", "float32"]


class EmbeddingPart(_Part):
    """How item text becomes an embedding; the encoder lies in ``text_encoder/``."""

    width: int = Field(ge=1)
    max_tokens: int = Field(ge=1)


class NewItemPart(_Part):
    """The dial of `service.model.new_items`, and the share of an answer's places that new items may take.

    ``fitted_on`` says where the coefficients come from: a data set, or "the recipe".
    """

    bias: float = Field(allow_inf_nan=False)
    text: float = Field(allow_inf_nan=False)
    model: float = Field(allow_inf_nan=False)
    temperature: float = Field(gt=0)
    decay: float = Field(gt=0, le=1)
    history: int = Field(ge=1)
    max_share: float = Field(ge=0, le=1)
    fitted_on: str

    @property
    def dial(self) -> NewItemDial:
        """The coefficients as the scoring takes them."""
        return NewItemDial(self.bias, self.text, self.model, self.temperature, self.decay, self.history)


class BlendPart(_Part):
    """The weights of `service.model.blend`; the items' neighbours lie in ``neighbours.safetensors``."""

    model: float = Field(ge=0, allow_inf_nan=False)
    company: float = Field(ge=0, allow_inf_nan=False)
    text: float = Field(ge=0, allow_inf_nan=False)
    reach: float = Field(gt=0, le=1)
    temperature: float = Field(gt=0)
    decay: float = Field(gt=0, le=1)
    history: int = Field(ge=1)

    @property
    def weights(self) -> BlendWeights:
        """As the ranking takes them."""
        return BlendWeights(**self.model_dump())


class SmoothingPart(_Part):
    """How items newer than the model get their probability.

    Inside the beam they borrow it: softmax temperature and boost (a factor on probability). ``new_items`` scores them
    all beside the beam; without it (an older checkpoint) the beam is their only way into an answer.
    """

    temperature: float = Field(gt=0)
    boost: float = Field(gt=0)
    new_items: NewItemPart | None = None


class ServingPart(_Part):
    """Defaults that the recipe chose from its data; events of weight 0 enter no history."""

    beam_width: int = Field(ge=1, le=512)
    exclude_seen: bool
    event_weights: dict[str, float] | None = None


class DataPart(_Part):
    """Where the catalogue and the interactions came from."""

    name: str
    fingerprint: str
    num_items: int
    num_users: int
    num_interactions: int
    license_note: str


class Manifest(_Part):
    """Everything the service must know before it opens a tensor."""

    schema_version: Literal[1, 2, 3, 4] = SCHEMA_VERSION
    model_version: str
    created_at: str
    sid: SidPart
    prompt: PromptPart
    prefix_memory: PrefixMemoryPart | None
    lm: LanguageModelPart
    embedding: EmbeddingPart
    smoothing: SmoothingPart
    blend: BlendPart | None = None
    serving: ServingPart
    data: DataPart
    recipe: dict[str, Any]
    metrics: dict[str, Any]
    files: dict[str, FileEntry]
