"""The children start our engine with the service's options; a mode it lacks is refused, not ignored."""

from dataclasses import dataclass

import pytest

from loadtest.engine import engine_options
from service.engine.base import EngineOptions
from tests.unit.loadtest.engine_fakes import spec


def test_a_childs_wishes_become_the_services_options() -> None:
    made = engine_options.engine_options(spec(threads=2, kv_gib=0.5, dtype="bfloat16", max_users=32))
    assert (made.omp_threads, made.kv_cache_gib, made.dtype, made.max_batch_users) == (2, 0.5, "bfloat16", 32)
    assert made.smoothing_boost == 1.0


def test_an_engine_without_compiled_mode_is_not_measured_as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Old:
        dtype: str

    monkeypatch.setattr(engine_options, "EngineOptions", Old)
    with pytest.raises(ValueError, match="no compiled mode"):
        engine_options.engine_options(spec(compiled=True))


def test_compiled_is_passed_on_and_off_by_default() -> None:
    def compiled(wanted: bool) -> bool:
        made: EngineOptions = engine_options.engine_options(spec(compiled=wanted))
        return made.compile

    assert compiled(True) and not compiled(False)
