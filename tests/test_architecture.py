"""The rooms of `official_bert` stand on floors: imports lead downward, never in a circle."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "official_bert"
# From the ground up; what stands on one line imports nothing of its neighbours.
FLOORS = (
    {"system"},
    {"model", "stacking"},
    {"data", "engines"},
    {"tasks", "checkpoints"},
    {"stages"},
    {"recipes", "training"},
    {"prediction", "commands"},
    {
        "learn_vocabulary",
        "create_pretraining_data",
        "run_pretraining",
        "run_squad",
        "run_classifier",
    },
    {"convert_checkpoint", "rehearsal", "reporting"},
    {"plots", "rehearse", "fill_blanks", "report"},
    {"demonstration"},
    {"demo"},
)


def rooms():
    wings = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return wings | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}


def imports():
    """{(room, room that it imports)}; what only types are named by is not imported when it runs."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in executed(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("official_bert"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                parts = name.split(".")
                if parts[0] == "official_bert" and len(parts) > 1 and parts[1] != room:
                    found.add((room, parts[1]))
    return {(a, b) for a, b in found if b in rooms()}


def executed(node):
    """The nodes of a module but for those below `if TYPE_CHECKING:`."""
    yield node
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        yield from executed(child)


def floor(room):
    if room == "__init__":  # `official_bert.load`, which is called from outside
        return len(FLOORS) + 1
    return next(number for number, floor in enumerate(FLOORS) if room in floor)


def test_every_room_has_a_floor():
    assert rooms() == set().union(*FLOORS)


def test_the_page_shows_the_floors():
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    _, _, shown = page.partition("## Imports lead downward")
    lines = re.findall("^    (.*)", shown, re.M)
    shown = [set(line.split()) for line in lines[::-1]]
    assert shown == [*FLOORS]


def test_imports_lead_downward():
    wrong = [(a, b) for a, b in imports() if floor(b) >= floor(a)]
    assert wrong == []


def test_neither_the_loop_nor_an_engine_imports_a_task():
    assert not {("training", "tasks"), ("engines", "tasks")} & imports()


def test_the_loop_knows_an_engine_by_what_the_trainer_is_given():
    for path in (PACKAGE / "training").glob("*.py"):
        for node in executed(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("official_bert.engines"):
                names = {f"{node.module}.{alias.name}".split(".")[2] for alias in node.names}
                assert names == {"loop_state"}, path
    assert "tf." not in (PACKAGE / "training/trainer.py").read_text()


def test_optimizers_know_nothing_of_bert():
    for path in (PACKAGE.parent / "lamb_tf").rglob("*.py"):
        assert "official_bert" not in path.read_text(), path
