"""The service's engine options for a benchmark's child."""

from dataclasses import fields
from typing import Any

from loadtest.engine.contender import HostSpec
from service.engine.base import EngineOptions


def engine_options(spec: HostSpec) -> EngineOptions:
    """One thread count, one KV cache and one prefill budget for all contenders.

    Raises:
        ValueError: compiled mode is asked of an engine that has none.
    """
    wanted: dict[str, Any] = {
        "dtype": spec.dtype,
        "max_batch_users": spec.max_users,
        "kv_cache_gib": spec.kv_gib,
        "omp_threads": spec.threads,
        "smoothing_boost": 1.0,
        "prefill_tokens": spec.prefill_tokens,
    }
    if spec.compiled:
        if "compile" not in {one.name for one in fields(EngineOptions)}:
            raise ValueError("this engine has no compiled mode")
        wanted["compile"] = True
    return EngineOptions(**wanted)
