"""The rules of shape that no linter knows: who may import what, who reads the environment, what may be called what."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "service", ROOT / "training"]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
TOP_LEVEL = {"service", "training", "deploy", "loadtest", "tests"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
SETTERS = {"setdefault", "update"}
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_module = pytest.mark.parametrize("path", MODULES, ids=name_of)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def imported_packages(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def parents(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def environment_uses(tree: ast.Module) -> list[tuple[int, bool]]:
    """Line of each use of the process environment, and whether it only sets a variable or hands all on to a child."""
    parent = parents(tree)
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            uses += [(node.lineno, False) for alias in node.names if alias.name in ENVIRONMENT]
        if not (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT):
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id == "os"):
            continue
        above = parent[node]
        sets_item = isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Store | ast.Del)
        calls_setter = (
            isinstance(above, ast.Attribute)
            and above.attr in SETTERS
            and isinstance(call := parent[above], ast.Call)
            and isinstance(parent[call], ast.Expr)
        )
        passes_on = isinstance(above, ast.Dict) and above.keys[above.values.index(node)] is None
        uses.append((node.lineno, sets_item or calls_setter or passes_on))
    return uses


@each_module
def test_only_the_settings_read_the_environment(path: Path) -> None:
    if name_of(path) == "service/settings.py":
        return
    vllm_module = name_of(path).startswith("service/engine/vllm_")
    wrong = [line for line, sets in environment_uses(tree_of(path)) if not (sets and vllm_module)]
    assert not wrong, f"{name_of(path)} uses the environment at lines {wrong}; service/settings.py is the one reader"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("os.environ['A'] = 'b'", [True]),
        ("os.environ.setdefault('A', 'b')", [True]),
        ("value = os.environ.setdefault('A', 'b')", [False]),
        ("{'A': 'b', **os.environ}", [True]),
        ("{'A': os.environ}", [False]),
        ("os.environ['A']", [False]),
        ("os.environ.get('A')", [False]),
        ("os.getenv('A')", [False]),
        ("from os import environ", [False]),
        ("dict(os.environ)", [False]),
        ("os.path.join('a')", []),
    ],
)
def test_reading_and_setting_the_environment_are_told_apart(source: str, expected: list[bool]) -> None:
    assert [sets for _, sets in environment_uses(ast.parse(source))] == expected


@each_module
def test_no_module_has_a_name_that_says_nothing(path: Path) -> None:
    parts = {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    words = {word for part in parts for word in part.split("_")}
    assert not words & VAGUE


@each_module
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), f"{name_of(path)} has no docstring"


@each_module
def test_nothing_that_runs_code_on_loading_is_imported_by_the_service(path: Path) -> None:
    if path.is_relative_to(ROOT / "service"):
        assert not set(imported_packages(tree_of(path))) & UNSAFE


@each_module
def test_vllm_and_redis_stay_in_the_files_named_after_them(path: Path) -> None:
    packages = set(imported_packages(tree_of(path)))
    if not name_of(path).startswith("service/engine/vllm_"):
        assert "vllm" not in packages
    if not name_of(path).startswith("service/stores/redis_"):
        assert "redis" not in packages


def tracked_folders() -> set[str]:
    ignored = {"runs", "build", "dist", "node_modules"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    return {name for name in folders if not name.startswith((".", "__")) and not name.endswith(".egg-info")} - ignored


def test_the_top_level_folders_are_the_fixed_ones() -> None:
    assert tracked_folders() <= TOP_LEVEL
