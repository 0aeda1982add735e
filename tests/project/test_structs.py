"""A `Struct` takes only the attributes that it declares: an assignment to any other one fails when it is reached."""

from __future__ import annotations

import ast
from pathlib import Path

import cdo

ROOT = Path(cdo.__file__).parent


def undeclared(code: ast.Module) -> list[str]:
    """Return what a Struct without `dict` assigns of `self` and does not declare, as Class.attribute."""
    found = []
    for kind in (node for node in ast.walk(code) if isinstance(node, ast.ClassDef)):
        bases = {base.id for base in kind.bases if isinstance(base, ast.Name)}
        if not bases & {"Struct", "Schema"} or any(keyword.arg == "dict" for keyword in kind.keywords):
            continue
        declared = {ast.unparse(node.target) for node in kind.body if isinstance(node, ast.AnnAssign)}
        declared |= {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}  # properties with a setter
        found += [
            f"{kind.name}.{node.attr}"
            for node in ast.walk(kind)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if ast.unparse(node.value) == "self" and node.attr not in declared
        ]
    return found


def test_structs_assign_only_attributes_that_they_declare() -> None:
    seen = undeclared(ast.parse("class A(Struct):\n    b: int\n    def go(self):\n        self.b = self.c = 1"))
    assert seen == ["A.c"]
    for path in ROOT.rglob("*.py"):
        assert not undeclared(ast.parse(path.read_text(encoding="utf-8"))), path
