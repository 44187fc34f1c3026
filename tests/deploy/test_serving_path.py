"""Nothing on the serving path can be made to run what it reads: asserted on the syntax tree, so no detour is missed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.engine.base import EngineOptions
from service.engine.vllm_process import engine_environment

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "service").rglob("*.py"))
OPTIONS = EngineOptions(dtype="float32", max_batch_users=1, kv_cache_gib=0.1, omp_threads=1, smoothing_boost=1.0)
LOADERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code", "codeop"}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "os.execv",
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "numpy.load",
    "np.load",
    "hub.load",
    "torch.hub.load",
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_true(call: ast.Call, name: str) -> bool:
    found = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return bool(found) and isinstance(found[0], ast.Constant) and found[0].value is True


def faults(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in LOADERS)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in LOADERS:
            yield node.module
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in CALLS:
                yield name
            if name == "torch.load" and not is_true(node, "weights_only"):
                yield "torch.load without weights_only=True"
            for flag in ("shell", "trust_remote_code", "allow_pickle"):
                if is_true(node, flag):
                    yield f"{name}({flag}=True)"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_service_loads_nothing_that_could_run(path: Path) -> None:
    assert not list(faults(ast.parse(path.read_text("utf-8"))))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import os\nos.system('x')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(folder, trust_remote_code=True)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_what_could_run_would_be_noticed(source: str) -> None:
    assert list(faults(ast.parse(source)))


@pytest.mark.parametrize("source", ["torch.load(path, weights_only=True)", "re.compile('x')", "model.eval()"])
def test_what_cannot_run_is_left_alone(source: str) -> None:
    assert not list(faults(ast.parse(source)))


def test_every_test_and_tool_that_the_threat_table_names_exists() -> None:
    text = (ROOT / "deploy" / "README.md").read_text("utf-8")
    rows = [
        line for line in text.partition("## Security")[2].partition("\n## ")[0].splitlines() if line.startswith("|")
    ]
    named = [path for row in rows[2:] for path in re.findall(r"`((?:tests|deploy)/[\w./]+)`", row)]
    assert len(rows) > 10
    assert len(named) >= len(rows) - 2
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_engines_sockets_are_told_to_stay_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_HOST_IP", raising=False)
    environment = engine_environment(OPTIONS)
    assert environment["VLLM_HOST_IP"] == "127.0.0.1"
