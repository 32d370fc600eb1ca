"""The shape of the code, as tests: imports point down, the core has no effects, modules stay readable."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "extproc"
CORE = [
    "views", "exchange", "groups", "router", "homes", "tuning", "vitals", "policy", "ledger", "residency",
    "footprint", "anchor", "answers", "held", "hooks", "keying", "passing", "reading", "request", "served",
    "subset", "usage", "ring", "ramp", "sent", "standing", "signals", "pool", "chain", "prompt", "traps",
]  # fmt: skip
EFFECTS = {
    "asyncio", "concurrent", "datetime", "google", "grpc", "io", "logging", "multiprocessing", "os",
    "pathlib", "prometheus_client", "random", "secrets", "signal", "socket", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib", "uuid", "aiohttp", "yaml", "contextvars",
}  # fmt: skip
IMPURE_CALLS = {"print", "open", "input", "hash", "id", "exec", "eval", "globals"}
LINES_MAX = 350


def modules(top: str) -> list[pathlib.Path]:
    path = PACKAGE / top
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


CORE_FILES = [file for top in CORE for file in modules(top)]
ALL_FILES = sorted(file for file in PACKAGE.rglob("*.py") if "pb" not in file.relative_to(PACKAGE).parts)


def named(file: pathlib.Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imports_of(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
            case _:
                pass
    return found


@pytest.mark.parametrize("file", CORE_FILES, ids=named)
def test_core_module_imports_no_effects(file: pathlib.Path) -> None:
    assert not imports_of(ast.parse(file.read_text())) & EFFECTS


@pytest.mark.parametrize("file", CORE_FILES, ids=named)
def test_core_module_calls_nothing_impure_and_awaits_nothing(file: pathlib.Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global), named(file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS, f"{named(file)}:{node.lineno} {node.func.id}"


def test_core_list_names_every_module_between_exchange_and_prompt() -> None:
    contract = (ROOT / "pyproject.toml").read_text()
    for top in CORE:
        assert all(file.exists() for file in modules(top))
        assert f'"extproc.{top}"' in contract


def test_import_contracts_hold() -> None:
    pytest.importorskip("importlinter")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_serving_loads_nothing_that_only_some_pools_or_commands_need() -> None:
    code = (
        "import sys, extproc.app; print({'dns', 'matplotlib', 'opentelemetry', 'rich'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("file", ALL_FILES, ids=named)
def test_module_says_what_it_is_in_its_docstring(file: pathlib.Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", ALL_FILES, ids=named)
def test_module_is_short_enough_to_read(file: pathlib.Path) -> None:
    assert len(file.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("file", [file for file in ALL_FILES if file.parent.name != "cli"], ids=named)
def test_only_commands_print(file: pathlib.Path) -> None:
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    printing = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
    assert not printing


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not {file.stem for file in ALL_FILES} & {"utils", "util", "common", "misc", "manager", "helpers"}


def test_only_the_composition_root_and_the_shell_ask_for_time_or_chance() -> None:
    askers = {"app", "cli", "sim", "gateway", "server", "endpoints", "admin", "doctor", "metrics", "log"}
    for file in ALL_FILES:
        top = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if top not in askers:
            assert not imports_of(ast.parse(file.read_text())) & {"time", "random", "secrets"}, named(file)
