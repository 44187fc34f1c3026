from pathlib import Path

import pytest

from service.errors import SettingsError
from service.settings import Settings, load_settings, masked_url
from service.settings_table import settings_table

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("GROUNDREC_")]:
        monkeypatch.delenv(name)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "groundrec.toml"
    file.write_text('checkpoint = "from-file"\nport = 1001\nhost = "file"\n')
    monkeypatch.setenv("GROUNDREC_PORT", "1002")
    monkeypatch.setenv("GROUNDREC_HOST", "environment")
    loaded = load_settings({"host": "flag", "port": None}, file)
    assert (str(loaded.settings.checkpoint), loaded.settings.port, loaded.settings.host) == ("from-file", 1002, "flag")
    assert loaded.settings.max_inflight == 64
    assert loaded.origin["host"] == "flag" and loaded.origin["port"] == "environment"
    assert loaded.origin["checkpoint"] == f"file {file}" and "max_inflight" not in loaded.origin


def test_the_file_can_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text('checkpoint = "x"\nallow_volatile = true\n')
    monkeypatch.setenv("GROUNDREC_CONFIG", str(tmp_path / "a.toml"))
    assert load_settings({}).settings.allow_volatile is True


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("prot = 1", "prot is not a setting; did you mean port?"),
        ("zzz = 1", "zzz is not a setting; see service/README.md"),
        ("port = ", "not a readable TOML file"),
        ('checkpoint = "x"\nport = 70000', "port .*less than or equal to 65535"),
        ("port = 1", "checkpoint is not set; give --checkpoint or GROUNDREC_CHECKPOINT"),
    ],
)
def test_a_wrong_file_is_refused_with_the_way_out(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(SettingsError, match=fault):
        load_settings({}, tmp_path / "a.toml")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        load_settings({}, tmp_path / "nowhere.toml")


def test_the_deploy_scripts_own_variable_is_no_unknown_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDREC_PYTHON", "python3.11")
    assert load_settings({"checkpoint": "x"}).settings.port == 8000


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDREC_ENGIN", "torch")
    with pytest.raises(SettingsError, match="GROUNDREC_ENGIN is not a setting; did you mean GROUNDREC_ENGINE?"):
        load_settings({"checkpoint": "x"})


def test_shown_settings_hide_the_password() -> None:
    loaded = load_settings({"checkpoint": "x", "redis_url": "redis://:hunter2@host:1/0"})
    lines = list(loaded.lines())
    assert len(lines) == len(Settings.model_fields)
    assert "redis_url = redis://:***@host:1/0  (flag)" in lines
    assert "hunter2" not in repr(loaded) + "".join(lines)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:1/0", "redis://host:1/0"),
        ("redis://user:p@ss@host/0", "redis://user:***@host/0"),
        ("rediss://user@host", "rediss://user@host"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
        ("nonsense", "nonsense"),
    ],
)
def test_only_the_password_of_a_url_is_masked(url: str, shown: str) -> None:
    assert masked_url(url) == shown


def test_the_readme_has_the_table_of_the_class() -> None:
    section = (ROOT / "service" / "README.md").read_text("utf-8").split("## Settings")[1].split("\n## ")[0]
    assert settings_table() in section, "write it anew: python -m service.settings_table"


def test_the_table_shows_defaults_but_no_secrets() -> None:
    rows = settings_table().splitlines()[2:]
    assert len(rows) == len(Settings.model_fields)
    assert "| `checkpoint` | required | folder of the servable checkpoint |" in rows
    assert "| `port` | `8000` | port to listen on |" in rows
    assert not any("SecretStr" in row for row in rows)


def test_keys_and_weights_can_come_from_the_environment_and_bad_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDREC_EVENT_WEIGHTS", '{"view": 1, "hide": 0}')
    keys = '[{"name": "a", "scopes": ["admin"], "sha256": ["' + "0" * 64 + '"]}]'
    monkeypatch.setenv("GROUNDREC_API_KEYS", keys)
    loaded = load_settings({"checkpoint": "x"}).settings
    assert loaded.event_weights == {"view": 1.0, "hide": 0.0} and loaded.api_keys[0].name == "a"
    monkeypatch.setenv("GROUNDREC_API_KEYS", "[{")
    with pytest.raises(SettingsError, match="api_keys"):
        load_settings({"checkpoint": "x"})
    monkeypatch.setenv("GROUNDREC_API_KEYS", keys.replace("admin", "king"))
    with pytest.raises(SettingsError, match=r"api_keys\.0\.scopes\.0 \(environment\)"):
        load_settings({"checkpoint": "x"})
