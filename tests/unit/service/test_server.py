import gc

from service.server import freeze_garbage_collector


def test_what_the_start_left_is_never_collected_again() -> None:
    catalogue: list[object] = [object]
    try:
        freeze_garbage_collector()
        assert gc.get_freeze_count() > 10_000
        assert not any(each is catalogue for each in gc.get_objects())
    finally:
        gc.unfreeze()
