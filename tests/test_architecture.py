"""The rooms of `official_bert` stand on floors: imports lead downward, never in a circle.

Imports for types only are counted as well: a reader follows them, too.
"""

import ast
import functools
import graphlib
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "official_bert"
# From the ground up; what stands on one line imports nothing of its neighbours.
FLOORS = (
    {"system"},
    {"model"},
    {"protocols"},
    {"data"},
    {"tasks", "checkpoints", "optimizers"},
    {"stages"},
    {"stacking", "engines"},
    {"recipes", "training"},
    {"reporting"},
    {"prediction"},
    {"commands"},
    {
        "learn_vocabulary",
        "create_pretraining_data",
        "run_pretraining",
        "run_squad",
        "run_tagger",
        "run_classifier",
    },
    {"convert_checkpoint", "rehearsal"},
    {"rehearse", "extract_features", "report", "build_with_beam", "demonstration"},
    {"demo"},
)


def modules():
    """{dotted name: path}"""
    paths = {p.relative_to(PACKAGE.parent).with_suffix(""): p for p in PACKAGE.rglob("*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): found for path, found in paths.items()}


@functools.cache
def imports():
    """{(module, module of the package that it imports)}"""
    known, found = modules(), set()
    for module, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                named = {name if name in known else node.module for name in names}
            elif isinstance(node, ast.Import):
                named = {alias.name for alias in node.names}
            else:
                continue
            found |= {(module, name) for name in named if name in known and name != module}
    return found


def room(module):
    """A wing, or a module of the top; `official_bert.load` is called from outside."""
    return (*module.split("."), "load")[1]


def rooms():
    return {room(module) for module in modules()} - {"load"}


def between_rooms():
    pairs = {(room(a), room(b)) for a, b in imports() if b != "official_bert"}
    return {(a, b) for a, b in pairs if a != b}


def floor(room):
    return next((n for n, floor in enumerate(FLOORS) if room in floor), len(FLOORS))


def test_every_room_has_a_floor():
    assert rooms() == set().union(*FLOORS)


def test_the_page_shows_the_floors():
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    _, _, shown = page.partition("## Imports lead downward")
    lines = re.findall("^    (.*)", shown, re.M)
    shown = [set(line.split()) for line in lines[::-1]]
    assert shown == [*FLOORS]


def test_imports_lead_downward():
    wrong = [(a, b) for a, b in between_rooms() if floor(b) >= floor(a)]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    below = {module: set() for module in modules()}
    for module, imported in imports():
        below[module].add(imported)
    graphlib.TopologicalSorter(below).prepare()  # a CycleError names the circle


def test_neither_the_loop_nor_an_engine_imports_a_task():
    assert not {("training", "tasks"), ("engines", "tasks")} & between_rooms()


def test_the_loop_knows_an_engine_by_what_the_trainer_is_given():
    engines = {
        engine
        for module, engine in imports()
        if room(module) == "training" and room(engine) == "engines"
        if module != "official_bert.training.fine_tuned"  # after the loop
    }
    assert engines == {"official_bert.engines.loop_state"}
    assert "tf." not in (PACKAGE / "training/trainer.py").read_text()


def test_optimizers_know_nothing_of_bert():
    for path in (PACKAGE.parent / "lamb_tf").rglob("*.py"):
        assert "official_bert" not in path.read_text(), path
