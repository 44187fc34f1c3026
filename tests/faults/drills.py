"""All drills, with RELIABILITY's numbers, in the order in which `all` carries them out: neighbours share a stage."""

from tests.faults import (
    alerts,
    bad_checkpoints,
    catalogue_swaps,
    clients,
    engine_loss,
    hostile_bodies,
    hostile_titles,
    redis_outages,
    replica_kills,
    same_items,
    sentinel_failover,
    two_replicas,
)
from tests.faults.drill import Drill

DRILLS = (
    Drill(1, "redis-killed", "Redis kill -9 under load: 0 failed, degraded, normal again", redis_outages.killed, 30, 3),
    Drill(2, "redis-frozen", "Redis SIGSTOP: the same, p99 at most 60 ms more", redis_outages.frozen, 30, 3),
    Drill(4, "redis-full", "Redis full: recommendations untouched, items refused", redis_outages.full, 5, 1),
    Drill(5, "redis-flushed", "Redis flushed: served from memory, alarm, log republished", redis_outages.flushed, 5),
    Drill(11, "hostile-bodies", "30 hostile bodies: no 5xx, answers of at most 4 KiB", hostile_bodies.refused, 0, 0),
    Drill(17, "hostile-titles", "titles are plain text; exposure at most 1.1 x the clean twin's", hostile_titles.plain),
    Drill(8, "clients-gone", "500 clients hang up: engine free in 1 s, others served", clients.gone, 10, 3),
    Drill(18, "catalogue-swaps", "catalogue changes under load: no illegal SID", catalogue_swaps.swapped, 120, 5),
    Drill(19, "soak", "steady load, an item a second: memory below 1 %/h, files level", catalogue_swaps.soaked, 600),
    Drill(6, "engine-killed", "kill -9 of the engine: unready, no late answer, exit", engine_loss.killed, 5, 2),
    Drill(7, "engine-frozen", "SIGSTOP of the engine: unready, fallback in time", engine_loss.frozen, 5),
    Drill(3, "sentinel-failover", "Sentinel failover: 0 failed, 0 acknowledged lost", sentinel_failover.failed_over, 5),
    Drill(14, "two-replicas", "2xx to recommendable on the other: p99 at most 1 s", two_replicas.visible, 60),
    Drill(12, "one-id", "200 posts of one id on two replicas: one created, one SID", same_items.one_id),
    Drill(13, "one-text", "200 items of one text: all recommendable, same on both", same_items.one_text),
    Drill(15, "rolling-restart", "1,000 posts: 0 failed, 0 lost, equal hash", two_replicas.rolling_restart, 120),
    Drill(9, "overload", "5 x overload: goodput, p99, Retry-After, memory", clients.overload, 60),
    Drill(16, "replica-killed", "a replica killed 20 x: nothing acknowledged is lost", replica_kills.killed),
    Drill(10, "bad-checkpoints", "14 bad checkpoints: exit 2, one line, port closed", bad_checkpoints.refused, 0),
    Drill(20, "alerts", "each alert rule fires in some drill", alerts.fire, 45),
)

QUICK = [drill for drill in DRILLS if drill.quick is not None]


def chosen(names: list[str]) -> list[Drill]:
    """Drills by name or number; ``all`` and ``quick`` stand for many.

    Raises:
        ValueError: no drill has such a name.
    """
    known = {key: [drill] for drill in DRILLS for key in (drill.name, str(drill.number))}
    known |= {"all": list(DRILLS), "quick": QUICK}
    for name in names:
        if name not in known:
            raise ValueError(f"no drill is called {name!r}; there are all, quick, {', '.join(d.name for d in DRILLS)}")
    return list(dict.fromkeys(drill for name in names for drill in known[name]))
