"""Imports point one way, and the light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SWEEPS_MAY_USE = {"errors", "quantities", "accounting", "runs", "files", "plots", "cli", "laws", "fitting", "presets"}
LIGHT = ("torch", "scipy", "pandas", "matplotlib")


def imported_modules(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package_files(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    return files


def test_scaling_never_imports_torch_or_sweeps():
    for path in package_files("scaling"):
        tops = {name.partition(".")[0] for name in imported_modules(path, top_level_only=True)}
        assert not tops & {"torch", "sweeps"}, path


def test_only_cli_modules_of_scaling_name_sweeps_at_all():
    for path in package_files("scaling"):
        if "cli" not in path.parts:
            assert not any(name.startswith("sweeps") for name in imported_modules(path)), path


def test_libraries_never_import_the_command_line():
    for package in ("scaling", "sweeps"):
        for path in package_files(package):
            if "cli" not in path.parts:
                used = imported_modules(path)
                assert not any(name.startswith(("scaling.cli", "sweeps.cli", "click")) for name in used), path


def test_sweeps_uses_only_the_foundations_of_scaling():
    for path in package_files("sweeps"):
        used = {name.split(".")[1] for name in imported_modules(path) if name.startswith("scaling.")}
        assert used <= SWEEPS_MAY_USE, (path, used - SWEEPS_MAY_USE)


@pytest.mark.parametrize("arguments", [["--help"], ["allocate", "--budget", "1e21"], ["allocate", "--list-laws"]])
def test_light_commands_load_no_heavy_library(arguments):
    code = (
        "import sys; from click.testing import CliRunner; from scaling.cli import cli\n"
        f"result = CliRunner().invoke(cli, {arguments!r}, catch_exceptions=False)\n"
        "assert result.exit_code == 0, result.output\n"
        f"print([m for m in {LIGHT!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[]"), done.stdout


def test_fit_works_with_torch_blocked(tmp_path):
    rows = ["params,tokens,loss"]
    for n in (1e7, 3e7, 1e8, 3e8, 1e9):
        for d in (1e9, 3e9, 1e10, 3e10):
            rows.append(f"{n:.0f},{d:.0f},{1.7 + 400 / n**0.34 + 410 / d**0.28!r}")
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(rows) + "\n")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from click.testing import CliRunner; from scaling.cli import cli\n"
        f"result = CliRunner().invoke(cli, ['fit', {str(table)!r}, '--json'], catch_exceptions=False)\n"
        "assert result.exit_code == 0, result.output\n"
        "import json; print(json.loads(result.stdout)['status'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "converged"


def test_sweep_without_torch_says_what_to_install(tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text('corpus = "python"\nparams = ["20K"]\ntokens = ["100K"]\n')
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = ['scale', 'sweep', {str(grid)!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "from scaling.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'isoflop[train]'" in done.stderr
    assert "Traceback" not in done.stderr
