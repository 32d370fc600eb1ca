"""Documentation is true: tables equal the code, YAML loads, commands and links exist."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from extproc import cli, config

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for where in ("*.md", "docs/**/*.md", "envoy/**/*.md", "helm/**/*.md", "proto/*.md")
    for path in ROOT.glob(where)
)
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for indent, kind, text in BLOCK.findall(page.read_text()):
            if kind == language:
                lines = [line.removeprefix(indent) for line in text.splitlines()]
                found.append((page.name, "\n".join(lines)))
    return found


def test_generated_tables_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_every_yaml_block_is_yaml_and_every_kvring_file_is_a_good_one(page, text):
    loaded = yaml.safe_load(text)
    assert loaded is not None
    if isinstance(loaded, dict) and "pools" in loaded:
        assert config.loads(text, {}).pools


def test_the_readme_shows_a_kvring_file_and_both_commands_on_its_first_screen():
    assert any(page == "README.md" and "pools" in text for page, text in blocks("yaml"))
    first_screen = (ROOT / "README.md").read_text().splitlines()[:14]
    assert any(line.startswith("make demo") for line in first_screen)
    assert any(line.startswith("make test") for line in first_screen)
    assert any("docs/images/demo.png" in line for line in first_screen)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_kvring_and_make_command_in_the_docs_exists_with_its_options():
    make_targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    seen = 0
    for page, text in blocks("sh"):
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert words[1] in make_targets, f"{page}: {line}"
                seen += 1
            if words[:1] == ["kvring"]:
                _assert_parses(words[1], words[2:], f"{page}: {line}")
                seen += 1
    assert seen >= 6


def _assert_parses(command: str, words: list[str], where: str) -> None:
    module_name, _ = cli.COMMANDS[command]
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"extproc.cli.{module_name}").add_arguments(parser)
    if ">" in words:
        words = words[: words.index(">")]
    _, unknown = parser.parse_known_args(words)
    assert not unknown, where


INSTALL = re.compile(r"pip install (?:-e )?'?\.\[([a-z,]+)\]")


def test_there_is_one_way_to_install_extras_and_the_readme_tells_it():
    """Other pages lead there; what a command says names the extra and installs that one."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        text = page.read_text()
        if page != ROOT / "README.md":
            assert "pip install" not in text, page.name
            assert "kvring[" not in text, page.name
        if page.parent.name == "decisions":
            continue  # they name extras that were rejected
        for named in re.findall(r"\bextra\]?(?:\([^)]*\))? `([^`]*)`", text):
            assert named in extras, page.name
    readme = (ROOT / "README.md").read_text()
    shown = {name for names in INSTALL.findall(" ".join(readme.split())) for name in names.split(",")}
    assert shown
    assert shown < extras
    rows = re.findall(
        r"^\| (`.*?`) \| .* \|$", readme.partition("| extra | for |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == extras
    for module in (ROOT / "extproc").rglob("*.py"):
        for named, installed in re.findall(r"extra (\w+) \(pip install '\.\[(\w+)\]'", module.read_text()):
            assert named == installed, module.name
            assert named in extras, module.name


RUN = ("check", "explain", "envoy-config")  # the commands that need nothing but files


def scripts(page: Path) -> list[tuple[str, str]]:
    """(language, text) of a page's blocks, in order."""
    return [
        (kind, "\n".join(line.removeprefix(indent) for line in text.splitlines()) + "\n")
        for indent, kind, text in BLOCK.findall(page.read_text())
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_offline_commands_run_on_the_files_that_the_page_shows(page, tmp_path, monkeypatch, capfd):
    """A page's newest kvring.yaml and request.json stand where its commands look for them."""
    monkeypatch.chdir(tmp_path)
    for kind, text in scripts(page):
        if kind == "yaml" and "pools:" in text:
            Path("kvring.yaml").write_text(text)
        elif kind == "json":
            Path("request.json").write_text(text)
        elif kind == "sh":
            for line in text.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["kvring"] and words[1] in RUN and Path("kvring.yaml").exists():
                    words, into = (words[:-2], words[-1]) if words[-2] == ">" else (words, None)
                    said = cli.main(words[1:])
                    out, err = capfd.readouterr()
                    assert said == 0, f"{page.name}: {line}: {err}"
                    assert out
                    if into is not None:
                        Path(into).write_text(out)


def test_the_pages_have_commands_to_run():
    lines = [
        line for page in PAGES for kind, text in scripts(page) if kind == "sh" for line in text.splitlines()
    ]
    run = [line for line in lines if line.startswith(tuple(f"kvring {command} " for command in RUN))]
    assert len(run) >= 6


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_heading_finds_it(page):
    for target, heading in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text()):
        there = page.parent / target if target else page
        assert heading in anchors(there), f"{page.name} links to {target}#{heading}"


@pytest.mark.parametrize("script", ["dashboard.py", "drawings.py"])
def test_what_scripts_draw_is_up_to_date(script):
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for command in cli.COMMANDS:
        assert f"`kvring {command}`" in text


CASE = re.compile(r"\b[PXLBMRSOD][012]\d\b")


def case_rows() -> dict[str, list[tuple[Path, str]]]:
    """Id -> the tests that docs/cases.md names for it: file, name."""
    rows: dict[str, list[tuple[Path, str]]] = {}
    text = (ROOT / "docs/cases.md").read_text()
    for case, shown in re.findall(r"^\| (\w\d\d) \|.*\|(.*)\|$", text, re.MULTILINE):
        file = ""
        assert case not in rows, f"{case} stands twice"
        rows[case] = []
        for named in re.findall(r"`([^`]*)`", shown):
            file, _, test = named.rpartition("::") if not named.startswith("::") else (file, "", named[2:])
            rows[case].append((ROOT / "tests" / file, test))
    return rows


def test_every_test_that_the_cases_name_exists():
    rows = case_rows()
    assert len(rows) > 90
    for case, tests in rows.items():
        assert tests, case
        for file, test in tests:
            assert file.exists(), f"{case}: {file}"
            found = re.search(rf"^(async )?(def|class) {test}\b", file.read_text(), re.MULTILINE)
            assert found, f"{case}: {file.name} has no {test}"


def test_every_case_that_a_test_names_is_in_the_table():
    rows = case_rows()
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for case in CASE.findall(file.read_text()):
            assert case in rows, f"{file.name} names {case}, docs/cases.md does not"
