"""What an installed groundrec has beside its code: the playground's files."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "service" / "api" / "static"


def test_the_wheel_has_every_file_of_the_playground(tmp_path: Path) -> None:
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns("__pycache__")
    for package in ("service", "training", "loadtest"):
        shutil.copytree(ROOT / package, source / package, ignore=skipped)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("groundrec-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    files = {path.relative_to(ROOT).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert len(files) > 10
    assert files <= names
