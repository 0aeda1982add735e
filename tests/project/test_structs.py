"""A `Struct` takes only the attributes that it declares: an assignment to any other one fails when it is reached."""

from __future__ import annotations

import ast
from pathlib import Path

import cdo

ROOT = Path(cdo.__file__).parent


def undeclared(*modules: ast.Module) -> list[str]:
    """Return what Structs without `dict` assign of `self` and do not declare, as Class.attribute."""
    kinds = {node.name: node for code in modules for node in ast.walk(code) if isinstance(node, ast.ClassDef)}
    found = []
    for kind in kinds.values():
        line = lineage(kind, kinds)
        open_to_all = any(keyword.arg == "dict" for each in line for keyword in each.keywords)
        if open_to_all or not {ast.unparse(base) for each in line for base in each.bases} & {"Struct", "Schema"}:
            continue
        body = [node for each in line for node in each.body]
        declared = {ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign)}
        declared |= {node.name for node in body if isinstance(node, ast.FunctionDef)}  # properties with a setter
        found += [
            f"{kind.name}.{node.attr}"
            for node in ast.walk(kind)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if ast.unparse(node.value) == "self" and node.attr not in declared
        ]
    return found


def lineage(kind: ast.ClassDef, kinds: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return a class and the classes of the package that it comes from. Names of classes are unique."""
    bases = [kinds[name] for base in kind.bases if (name := ast.unparse(base)) in kinds]
    return [kind, *(each for base in bases for each in lineage(base, kinds))]


def test_structs_assign_only_attributes_that_they_declare() -> None:
    seen = undeclared(ast.parse("class A(Struct):\n b: int\nclass C(A):\n def go(self):\n  self.b = self.c = 1"))
    assert seen == ["C.c"]
    assert not undeclared(*(ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")))
