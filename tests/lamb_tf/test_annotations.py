"""Every public function and method says of which types its arguments and its result are."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLED_BY_SYNTAX = {"__init__", "__call__", "__getitem__", "__len__", "__iter__"}


def public_functions(node: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Functions of a module and methods of its classes; not what begins with an underscore."""
    for child in node.body:
        if not isinstance(child, ast.FunctionDef | ast.ClassDef):
            continue
        if child.name.startswith("_") and child.name not in CALLED_BY_SYNTAX:
            continue
        if isinstance(child, ast.FunctionDef):
            yield child
        else:
            yield from public_functions(child)


def not_annotated(function: ast.FunctionDef) -> list[str]:
    """Names of the arguments without a type, and `return`."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    names = [a.arg for a in arguments if a and not a.annotation and a.arg not in ("self", "cls")]
    returns = function.returns or function.name == "__init__"
    return names if returns else [*names, "return"]


def test_public_functions_are_annotated():
    missing = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {', '.join(names)}"
        for package in ("lamb_tf", "official_bert")
        for path in sorted((ROOT / package).rglob("*.py"))
        for function in public_functions(ast.parse(path.read_text(encoding="utf-8")))
        if (names := not_annotated(function))
    ]
    assert not missing, "\n".join(missing)


def test_a_missing_type_is_found():
    source = "class A:\n    def b(self, c: int, *d, e=1) -> int: ...\n    def _f(self, g): ...\n"
    (function,) = public_functions(ast.parse(source))
    assert not_annotated(function) == ["e", "d"]
