"""Keys: unguessable, kept as digests, two at a time, read again when the file changes."""

from pathlib import Path

import pytest

from service.api_keys import KeyEntry, KeyRing, digest, new_key
from service.errors import SettingsError
from service.key_file import add_key, read_keys, retire_key, watch_keys


def test_keys_are_long_different_and_found_by_their_digest_only() -> None:
    one, other = new_key(), new_key()
    assert one != other and len(one) > 40
    ring = KeyRing(lambda: (KeyEntry(name="a", scopes=("events",), sha256=(digest(one),)),))
    ring_entries = (KeyEntry(name="a", scopes=("events",), sha256=(digest(one),)),)
    ring = KeyRing(lambda: ring_entries)
    client = ring.find(one)
    assert client is not None and client.name == "a" and client.may("events") and not client.may("items")
    for wrong in (other, one[:-1], one + "x", "", digest(one)):
        assert ring.find(wrong) is None


def test_a_file_goes_through_the_life_of_a_client(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    first = add_key(file, "shop", ("recommend", "events"), 50.0, 100)
    other = add_key(file, "boss", ("admin",), None, None)
    second = add_key(file, "shop", (), None, None)
    with pytest.raises(SettingsError, match="two keys; drop the older one"):
        add_key(file, "shop", (), None, None)
    entries = {entry.name: entry for entry in read_keys(file)}
    assert entries["shop"].sha256 == (digest(first.key), digest(second.key))
    assert (entries["shop"].requests_per_second, entries["shop"].burst) == (50.0, 100)
    assert first.key not in file.read_text() and file.stat().st_mode & 0o077 == 0
    retire_key(file, "shop")
    ring = KeyRing(lambda: kept)
    kept = read_keys(file)
    assert ring.find(first.key) is None
    assert ring.find(second.key) is not None and ring.find(other.key) is not None
    retire_key(file, "shop")
    assert [entry.name for entry in read_keys(file)] == ["boss"]
    with pytest.raises(SettingsError, match="no client is called shop; known: boss"):
        retire_key(file, "shop")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nonsense", "not a readable key file"),
        ('[[api_keys]]\nname = "a"\nscopes = ["admin"]\nsha256 = ["00"]', r"api_keys\.0\.sha256\.0"),
        ('[[api_keys]]\nname = "a"\nscopes = ["everything"]\nsha256 = []', r"api_keys\.0\.scopes\.0"),
        ('[[keys]]\nname = "a"', "keys: Extra inputs"),
        (f'[[api_keys]]\nname = "a"\nscopes = ["admin"]\nsha256 = ["{"0" * 64}"]\n' * 2, "the same name occurs twice"),
        (
            f'[[api_keys]]\nname = "a"\nscopes = ["admin"]\nsha256 = ["{"0" * 64}"]\nburst = 3',
            "burst needs requests_per_second",
        ),
    ],
)
def test_a_bad_file_is_refused_by_its_place(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=fault):
        read_keys(file)


def test_a_new_client_needs_scopes_and_a_known_one_keeps_its_own(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    with pytest.raises(SettingsError, match="--scopes: shop is a new client"):
        add_key(file, "shop", (), None, None)
    with pytest.raises(SettingsError, match="name"):
        add_key(file, "bad name", ("admin",), None, None)
    add_key(file, "shop", ("recommend",), None, None)
    with pytest.raises(SettingsError, match="a second key has the same"):
        add_key(file, "shop", ("admin",), None, None)


def test_a_changed_file_takes_effect_and_a_broken_one_locks_nobody_out(tmp_path: Path) -> None:
    file, now = tmp_path / "keys.toml", [0.0]
    first = add_key(file, "shop", ("recommend",), None, None)
    ring = KeyRing(watch_keys(file, lambda: now[0]))
    second = add_key(file, "shop", (), None, None)
    assert ring.find(first.key) and not ring.find(second.key), "looked at once a second at most"
    now[0] = 1.5
    assert ring.find(first.key) and ring.find(second.key)
    file.write_text("broken")
    now[0] = 3.0
    assert ring.find(first.key) and ring.find(second.key)
    file.unlink()
    now[0] = 4.5
    assert ring.find(first.key)
