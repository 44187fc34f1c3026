"""What GET /model says: which model and catalogue are served, how they were made, and what requests get by default."""

from collections.abc import Callable, Mapping
from typing import Any

from service.lane import CurrentCatalog, Lane
from service.model.checkpoint import Checkpoint
from service.settings import Settings


def model_report(
    settings: Settings, checkpoint: Checkpoint, catalogs: CurrentCatalog, lane: Lane
) -> Callable[[], Mapping[str, Any]]:
    """A function that reports the state of the moment."""
    fixed = _fixed(settings, checkpoint, lane)

    def report() -> Mapping[str, Any]:
        catalog = catalogs.current
        counts = {"catalog_items": len(catalog), "new_items": catalog.new_count}
        fields = {"filter_fields": catalog.fields()}
        version = {"catalog_version": catalog.version, "catalog_hash": catalog.catalog_hash}
        return {**fixed, **version, **counts, **fields}

    return report


def _fixed(settings: Settings, checkpoint: Checkpoint, lane: Lane) -> dict[str, Any]:
    manifest, options = checkpoint.manifest, lane.options
    smoothing = {
        "boost": settings.smoothing_boost or manifest.smoothing.boost,
        "temperature": settings.smoothing_temperature or manifest.smoothing.temperature,
    }
    dial = manifest.smoothing.new_items
    data = manifest.data.model_dump(include={"name", "num_items", "num_users", "num_interactions", "license_note"})
    return {
        "model_version": manifest.model_version,
        "created_at": manifest.created_at,
        "levels": manifest.sid.levels,
        "codes": manifest.sid.codes,
        "max_history_items": manifest.prompt.max_items,
        "beam_width": options.beam_width,
        "exclude_seen": options.exclude_seen,
        "cold_new_share": options.cold_new_share,
        "smoothing": smoothing,
        "blend": None if manifest.blend is None or not settings.blend else manifest.blend.model_dump(),
        "new_item_share": options.new_item_share,
        "new_item_dial": None if dial is None else dial.model_dump(exclude={"max_share"}),
        "data": data,
        "metrics": manifest.metrics,
    }


def new_item_share(settings: Settings, checkpoint: Checkpoint) -> float:
    """The largest share of an answer's places that new items may take: the setting, the checkpoint's, else all."""
    part = checkpoint.manifest.smoothing.new_items
    own = 1.0 if part is None else part.max_share
    return own if settings.new_item_share is None else settings.new_item_share
