"""From a trained model to a servable checkpoint, built beside its place, proved, and renamed into it.

What is written is opened again as the service would, and must give the training model's logits. A failure at any moment
(a full disk included) leaves the old checkpoint, or none, never half of one.

Shapes: N items, L levels, E embedding width.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from service.model.blend import BlendWeights, Neighbours
from service.model.checkpoint import (
    NEIGHBOURS,
    PREFIX_MEMORY,
    CatalogTensors,
    ItemRecord,
    copy_text_encoder,
    open_checkpoint,
    seal,
    write_catalog,
)
from service.model.checkpoint_files import QUANTIZER
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from service.model.manifest import Manifest
from service.model.quantizer import ResidualQuantizer
from training.backbone import Backbone, extend_and_save
from training.config import Recipe
from training.errors import TrainingError
from training.prefix_memory.registry import check_servable
from training.stages import replace_folder
from training.trained_model import text_dtype
from training.training_data import TrainingData

PROVED_PROMPTS = 4
PROVED_ITEMS = 5
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Exported:
    """Everything a checkpoint holds."""

    recipe: Recipe
    data: TrainingData
    backbone: Backbone
    model: GroundedLM
    codes_NL: NDArray[np.int64]
    embedding_NE: NDArray[np.float32]
    quantizer: ResidualQuantizer
    encoder_folder: Path
    metrics: Mapping[str, Any]
    blend: tuple[Neighbours, BlendWeights] | None = None

    def write(self, folder: Path) -> Manifest:
        """Write the checkpoint to ``folder``, replacing an older one as a whole.

        Raises:
            TrainingError: it cannot be written, what was written does not give the same logits, or the service has no
                such memory.
        """
        check_servable(self.model.memory)
        temporary = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            self._write_files(temporary)
            seal(temporary, self._manifest(self.metrics))
            difference = self._largest_difference(temporary)
            manifest = seal(temporary, self._manifest({**self.metrics, "export_max_abs_logit_difference": difference}))
            replace_folder(temporary, folder)
        except OSError as error:
            raise TrainingError(f"{folder} cannot be written: {error}; free some space and run again") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return manifest

    def _write_files(self, folder: Path) -> None:
        model = self.model
        extend_and_save(
            self.backbone, model.space, model.sid_rows.data, _data(model.sid_head), folder / "lm", model.dtype
        )
        if model.memory is not None:
            save_file({n: t.contiguous() for n, t in model.memory.state_dict().items()}, folder / PREFIX_MEMORY)
        save_file(self.quantizer.tensors(), folder / QUANTIZER)
        if self.blend is not None:
            save_file(self.blend[0].tensors(), folder / NEIGHBOURS)
        items = [
            ItemRecord(item.item_id, item.title, item.description, item.attributes) for item in self.data.dataset.items
        ]
        write_catalog(folder, items, CatalogTensors(self.codes_NL, self.embedding_NE, self.data.popularity_N))
        copy_text_encoder(self.encoder_folder, folder)

    def _manifest(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        recipe, model = self.recipe, self.model
        return {
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "sid": {
                "levels": model.space.levels,
                "codes": model.space.codes,
                "first_token_id": model.space.first_token_id,
                "collision_policy": recipe.sids.policy,
                "collision_rate": self.metrics["collision_rate"],
                "spare_codes": recipe.sids.spare_codes,
            },
            "prompt": {
                "prefix_ids": model.get_buffer("prefix_ids").tolist(),
                "max_items": recipe.prompt.max_items,
                "title_tokens": recipe.prompt.title_tokens,
            },
            "prefix_memory": self._memory_part(),
            "lm": self._language_model_part(),
            "embedding": {"width": self.embedding_NE.shape[1], "max_tokens": recipe.embedding.max_tokens},
            "smoothing": recipe.serving.smoothing,
            "blend": None if self.blend is None else asdict(self.blend[1]),
            "serving": {
                "beam_width": recipe.serving.beam_width,
                "exclude_seen": self.data.exclude_seen(recipe.serving.exclude_seen),
            },
            "data": self._data_part(),
            "recipe": recipe.model_dump(mode="json"),
            "metrics": dict(metrics),
        }

    def _memory_part(self) -> dict[str, Any] | None:
        if self.model.memory is None:
            return None
        config = self.model.memory.config
        return {name: getattr(config, name) for name in ("heads", "width", "rows", "inject_levels", "seed")}

    def _language_model_part(self) -> dict[str, Any]:
        config = self.backbone.model.config
        rows = max(len(self.backbone.input_rows), self.model.space.end_token_id)
        return {
            "architecture": type(self.backbone.model).__name__,
            "vocab_size": -(-rows // 64) * 64,
            "hidden_size": config.hidden_size,
            "num_layers": config.num_hidden_layers,
            "dtype": text_dtype(self.model.dtype),
        }

    def _data_part(self) -> dict[str, Any]:
        dataset = self.data.dataset
        return {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "num_items": len(dataset.items),
            "num_users": len(dataset.sequences),
            "num_interactions": dataset.num_interactions,
            "license_note": dataset.license_note,
        }

    def _largest_difference(self, folder: Path) -> float:
        reopened = load_grounded_lm(open_checkpoint(folder), self.model.dtype)
        picked = np.random.default_rng(0).integers(0, len(self.codes_NL), (PROVED_PROMPTS, PROVED_ITEMS))
        codes_BNL = torch.from_numpy(self.codes_NL[picked])
        difference = float((_logits(self.model, codes_BNL) - _logits(reopened, codes_BNL)).abs().max())
        if not difference <= TOLERANCE:
            raise TrainingError(f"the exported checkpoint's logits differ by {difference:.2e} from the trained model's")
        return difference


@torch.no_grad()
def _logits(model: GroundedLM, codes_BNL: torch.Tensor) -> torch.Tensor:
    hidden = model.eval().hidden(model.embed_sequences(codes_BNL))
    return torch.stack([model.level_logits(hidden, level) for level in range(model.space.levels)])


def _data(rows: torch.Tensor | None) -> torch.Tensor | None:
    return None if rows is None else rows.detach()
