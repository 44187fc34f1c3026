"""The table of settings in service/README.md: ``python -m service.settings_table`` writes it anew from the class."""

import re
from pathlib import Path

from pydantic import SecretStr

from service.settings import Settings

README = Path(__file__).with_name("README.md")
HEAD = "| setting | default | what it is |\n|---|---|---|\n"


def settings_table() -> str:
    """The table, one row a setting, in the order of the class."""
    rows = (
        f"| `{name}` | {shown_default(name)} | {field.description} |" for name, field in Settings.model_fields.items()
    )
    return HEAD + "\n".join(rows) + "\n"


def shown_default(name: str) -> str:
    """A default as the table shows it."""
    field = Settings.model_fields[name]
    if field.is_required():
        return "required"
    value = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    return "unset" if value is None else "none" if value in ((), "") else f"`{value}`"


if __name__ == "__main__":
    text = README.read_text("utf-8")
    README.write_text(re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: settings_table(), text), "utf-8")
