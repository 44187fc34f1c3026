import gc

from service.server import freeze_garbage_collector


def test_what_the_start_left_is_never_collected_again() -> None:
    try:
        freeze_garbage_collector()
        assert gc.get_freeze_count() > 10_000
        assert sum(len(gc.get_objects(generation)) for generation in range(3)) < gc.get_freeze_count()
    finally:
        gc.unfreeze()
