"""The files of this repo, as text and as syntax trees: what the tests of the repo look at."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protos", "ps", "client", "worker")
FOLDERS = (*PACKAGES, "tests", "examples", "benchmarks")
GENERATED = ("_pb2.py", "_pb2.pyi")


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Hand-written Python, below these folders; below all by default."""
    found = (path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(sorted(path for path in found if not path.name.endswith(GENERATED)))


def tracked_files() -> list[Path]:
    """What a clone has, and what will be added to it; where there is no git, every file that is not made by a tool."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return sorted({ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()})
    hidden = (".venv", ".git", "__pycache__", "build", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis")
    return sorted(path for path in ROOT.rglob("*") if path.is_file() and not set(hidden) & set(path.parts))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path, *, lazy: bool = True) -> dict[str, int]:
    """Every module that a file imports, by full name, and the line. lazy: also inside of functions."""
    found: dict[str, int] = {}
    todo: list[ast.AST] = [tree(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively: the rules are written in full names"
            found |= {f"{node.module}.{alias.name}": node.lineno for alias in node.names}
        if lazy or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            todo += ast.iter_child_nodes(node)
    return found


def name(path: Path) -> str:
    """For test ids and messages."""
    return str(path.relative_to(ROOT))
