"""Looking back, going back, writing out and reading in: the commands about the live catalogue."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.catalog_cli import catalog_app
from service.catalog_history import CatalogHistory, difference
from service.client.calls import Item
from service.client.results import PostedItem
from service.errors import RefusedError, StartupError, UnreachableError
from service.item_file import read_items
from service.item_import import ItemImport
from service.model.checkpoint import Checkpoint
from service.model.checkpoint_files import QUANTIZER
from service.stores.memory_items import MemoryItemLog
from service.stores.redis_items import RedisItemLog
from tests.integration.test_log_recovery import assert_alike, contents, film, replica, until


async def test_going_back_gives_every_replica_the_old_catalogue_and_can_be_undone(checkpoint: Checkpoint) -> None:
    log = MemoryItemLog()
    history = CatalogHistory(log)
    async with replica(checkpoint, log) as one, replica(checkpoint, log) as two:
        await one.post(film(1), film(2))
        await one.ingest.delete("item-3")
        old, old_hash = contents(one.catalog), one.catalog.catalog_hash
        await one.post(film(1, like=40, word="moved"), film(4), film(5))
        await one.ingest.delete("new-2")
        await one.ingest.delete("item-8")
        new = contents(one.catalog)
        done = await history.rollback(3)
        await until(lambda: min(one.catalog.version, two.catalog.version) == done.version)
        assert (done.items, done.conflicts, done.version) == (5, (), 13)
        assert contents(one.catalog) == old and one.catalog.catalog_hash == old_hash
        assert_alike(one, two)
        undone = await history.rollback(8)
        await until(lambda: min(one.catalog.version, two.catalog.version) == undone.version)
        assert contents(one.catalog) == new
        assert_alike(one, two)
        empty = await history.rollback(0)
        await until(lambda: one.catalog.version == empty.version)
        assert set(contents(one.catalog)) == {item.item_id for item in checkpoint.items()}


async def test_versions_that_are_not_kept_are_refused_with_what_is(checkpoint: Checkpoint) -> None:
    log = MemoryItemLog()
    history = CatalogHistory(log)
    with pytest.raises(StartupError, match="nothing was ever posted"):
        await history.at()
    async with replica(checkpoint, log, every=3) as one:
        for number in range(20):
            await one.post(film(number))
            await one.sync.close()
    with pytest.raises(StartupError, match="the newest is 20"):
        await history.at(21)
    oldest = await history.oldest()
    assert 0 < oldest < 20
    with pytest.raises(StartupError, match=f"the oldest is {oldest}"):
        await history.at(oldest - 1)
    assert len((await history.at(oldest)).state) == oldest and len((await history.at(19)).state) == 19


async def test_a_difference_names_what_came_went_and_changed(checkpoint: Checkpoint) -> None:
    log = MemoryItemLog()
    history = CatalogHistory(log)
    async with replica(checkpoint, log) as one:
        await one.post(film(1), film(2))
        await one.post(film(3), film(2, word="again"))
        await one.ingest.delete("new-1")
        await one.ingest.delete("item-4")
    found = difference((await history.at(2)).state, (await history.at()).state)
    assert (found.added, found.removed, found.changed) == (("new-3",), ("item-4", "new-1"), ("new-2",))


@pytest.fixture
def posted(checkpoint: Checkpoint, redis_url: str) -> Iterator[list[str]]:
    """The options that lead a command to a log with three posted items."""
    import asyncio

    async def post() -> None:
        log = RedisItemLog(redis_url, fingerprint=checkpoint.manifest.files[QUANTIZER].sha256[:12], shown_url="")
        async with replica(checkpoint, log) as one:
            await one.post(film(1), film(2))
            await one.post(film(3))
        await log.close()

    asyncio.run(post())
    yield ["--checkpoint", str(checkpoint.folder), "--redis-url", redis_url]


def test_the_commands_show_go_back_and_write_out(posted: list[str], tmp_path: Path) -> None:
    run = CliRunner().invoke
    shown = run(catalog_app, ["list", *posted])
    assert shown.exit_code == 0 and "version 3: 63 items, 3 of them posted" in shown.output
    assert "versions kept: 0 to 3" in shown.output and "new-3" in shown.output
    assert run(catalog_app, ["diff", "1", *posted]).output.splitlines() == [
        "+ new-2",
        "+ new-3",
        "2 added, 0 removed, 0 changed",
    ]
    dry = run(catalog_app, ["rollback", "--to", "1", "--dry-run", *posted])
    assert dry.exit_code == 0 and "2 items would be put back" in dry.output
    back = run(catalog_app, ["rollback", "--to", "1", *posted])
    assert back.exit_code == 0 and "now at version 5" in back.output
    file = tmp_path / "items.jsonl"
    assert run(catalog_app, ["export", "--out", str(file), *posted]).exit_code == 0
    rows = [row.item for row in read_items(file)]
    assert {row.item_id for row in rows if row} == {f"item-{n}" for n in range(60)} | {"new-1"}
    old = tmp_path / "old.parquet"
    assert run(catalog_app, ["export", "--out", str(old), "--version", "3", *posted]).exit_code == 0
    found = {row.item.item_id: row.item for row in read_items(old) if row.item}
    assert len(found) == 63 and found["new-2"].attributes == {"part": 2}


class FakeService:
    """Takes what it is posted; refuses titles of "bad" and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.items: dict[str, Item] = {}
        self.calls = 0
        self.failures = failures

    def post_items(self, items: Sequence[Item], *, dry_run: bool = False) -> list[PostedItem]:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise UnreachableError("no answer")
        if any(item.title == "bad" for item in items):
            raise RefusedError(422, "invalid-request", "too long", pointers=("/0/title",))
        results = [
            PostedItem(item.item_id, "unchanged" if self.items.get(item.item_id) == item else "created")
            for item in items
        ]
        self.items |= {} if dry_run else {item.item_id: item for item in items}
        return results


def test_every_kind_of_file_gives_the_same_items(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.csv").write_text('item_id,title,description,brand\na,Drill,"Two speeds, 18 V",Makita\nb,Saw,,\n')
    rows = [{"item_id": "a", "title": "Drill", "description": "Two speeds, 18 V", "brand": "Makita"}]
    rows.append({"item_id": "b", "title": "Saw"})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = [[row.item for row in read_items(tmp_path / f"a.{kind}")] for kind in ("csv", "jsonl", "parquet")]
    assert found[0] == found[1] == found[2]
    assert found[0][0] == Item("a", "Drill", "Two speeds, 18 V", {"brand": "Makita"})


def test_an_import_reports_each_rejected_row_by_file_row_and_field(tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text("item_id,title\n" + "".join(f"i-{n},{'bad' if n == 7 else f'T{n}'}\n" for n in range(150)) + ",x\n")
    service = FakeService()
    done = ItemImport(service, file).run()
    assert done.results == {"created": 149, "rejected": 2} and done.rejects is not None
    rejected = [json.loads(line) for line in done.rejects.read_text().splitlines()]
    assert [(row["file"], row["row"], row["field"]) for row in rejected] == [
        ("items.csv", 9, "title"),
        ("items.csv", 152, "item_id"),
    ]
    assert len(service.items) == 149


def test_an_import_that_was_stopped_goes_on_and_one_that_is_repeated_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text("".join(json.dumps({"item_id": n, "title": f"T{n}"}) + "\n" for n in range(250)))
    service = FakeService()

    class Stopped(Exception):
        pass

    def stop(rows: int) -> None:
        if len(service.items) == 200:
            raise Stopped

    with pytest.raises(Stopped):
        ItemImport(service, file).run(stop)
    calls = service.calls
    assert ItemImport(service, file).run().results == {"created": 250}
    assert service.calls == calls + 1 and len(service.items) == 250
    assert ItemImport(service, file).run().results == {"unchanged": 250}


def test_an_import_waits_for_a_service_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.item_import.PAUSE_SECONDS", 0)
    file = tmp_path / "items.jsonl"
    file.write_text('{"item_id": "a", "title": "T"}\n')
    assert ItemImport(FakeService(failures=3), file).run().results == {"created": 1}


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("items.txt", "", "must end in"),
        ("none.csv", None, "no such file"),
        ("items.csv", "id,title\n", "no column item_id; the columns are id, title"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_by_name(
    tmp_path: Path, name: str, text: str | None, fault: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(StartupError, match=fault):
        ItemImport(FakeService(), tmp_path / name).run()
