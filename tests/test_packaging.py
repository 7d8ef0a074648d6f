"""The project as others meet it: as a wheel, in Bazel's BUILD file, in a citation."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import peers
import pytest
import starlark
import yaml

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "lamb_tf/__init__.py").read_text(), re.MULTILINE
)[1]


def project_files(*folders):
    """The Python files of the working tree, without what tools leave behind."""
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    }


def imports_of(file):
    """(module, name) of each import of a file; a name of None for `import module`."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def bazel_targets():
    """BUILD evaluated by a Starlark interpreter: a list of (rule, attributes)."""
    targets = []

    def matches(patterns):
        return {path.relative_to(ROOT).as_posix() for p in patterns for path in ROOT.glob(p)}

    def glob(include, exclude=(), allow_empty=False):
        found = sorted(matches(include) - matches(exclude))
        assert found or allow_empty, f"{include} matches no file"
        return found

    def rule(kind):
        return lambda **attributes: targets.append((kind, attributes))

    rules = starlark.Module()
    rules.add_callable("py_library", rule("py_library"))
    rules.add_callable("py_test", rule("py_test"))
    build = starlark.Module()
    build.add_callable("glob", glob)
    build.add_callable("package", lambda **_: None)
    build.add_callable("licenses", lambda _: None)
    build.add_callable("exports_files", lambda _: None)

    dialect = starlark.Dialect.standard()
    dialect.enable_load = True
    starlark.eval(
        build,
        starlark.parse("BUILD", (ROOT / "BUILD").read_text(), dialect),
        starlark.Globals.standard(),
        starlark.FileLoader(lambda _: rules.freeze()),
    )
    return targets


def test_every_package_has_a_library_target_in_build():
    libraries = {a["name"]: set(a["srcs"]) for kind, a in bazel_targets() if kind == "py_library"}
    assert libraries["lamb_tf"] == project_files("lamb_tf")
    assert libraries["official_bert"] == project_files("official_bert")


def test_every_test_file_has_a_test_target_in_build():
    tests = {a["name"]: a for kind, a in bazel_targets() if kind == "py_test"}
    expected = {p.stem: p.relative_to(ROOT).as_posix() for p in ROOT.glob("tests/**/test_*.py")}
    assert set(tests) == set(expected)
    for name, attributes in tests.items():
        assert expected[name] in attributes["srcs"]
        assert attributes["args"] == [f"$(location {expected[name]})"]


def test_every_python_file_is_in_a_target_of_build():
    built = {file for _, attributes in bazel_targets() for file in attributes["srcs"]}
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(tracked) - built == set()


def test_every_dependency_named_in_build_is_a_target_of_it():
    targets = bazel_targets()
    names = {f":{attributes['name']}" for _, attributes in targets}
    assert {d for _, attributes in targets for d in attributes.get("deps", [])} <= names


def test_what_a_target_imports_is_among_its_dependencies():
    targets = {f":{attributes['name']}": attributes for _, attributes in bazel_targets()}

    def modules(target):
        files = [Path(file).with_suffix("") for file in target["srcs"]]
        return {f.stem if f.parts[0] in ("tests", "docs") else ".".join(f.parts) for f in files}

    def reached(target):
        deps = [targets[dependency] for dependency in target.get("deps", [])]
        return modules(target).union(*map(reached, deps))

    every_module = set().union(*map(modules, targets.values()))
    for target in targets.values():
        for file in target["srcs"]:
            wanted = {part for m, name in imports_of(file) for part in (m, f"{m}.{name}")}
            assert wanted & every_module <= reached(target), file


def test_a_missing_peer_is_a_skip_and_under_make_a_failure(monkeypatch):
    monkeypatch.delenv("LAMB_TF_ALL_PEERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_peer does not import"):
        peers.load("no_such_peer")
    assert "\ntest test-quick: export LAMB_TF_ALL_PEERS = 1\n" in (ROOT / "Makefile").read_text()
    monkeypatch.setenv("LAMB_TF_ALL_PEERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no_such_peer does not import"):
        peers.load("no_such_peer")


def test_setup_py_only_calls_setup():
    body = ast.parse((ROOT / "setup.py").read_text()).body
    docstring, import_line, call = body
    assert isinstance(docstring.value, ast.Constant)
    assert ast.unparse(import_line) == "from setuptools import setup"
    assert ast.unparse(call) == "setup()"


def test_the_version_is_the_same_everywhere():
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "lamb_tf.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    changelog = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changelog[0] == VERSION


def test_the_citation_file_names_every_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for key in ("cff-version", "message", "title", "authors", "license"):
        assert citation[key]
    papers = {
        identifier["value"].removeprefix("arXiv:")
        for reference in citation["references"]
        for identifier in reference["identifiers"]
    }
    # LAMB, LARS, LEGW, multi-node BERT, MSLT, the comparison by Nado et al., sharded updates, BERT
    assert papers == {
        "1904.00962",
        "1708.03888",
        "1901.08256",
        "2008.00177",
        "2011.13635",
        "2102.06356",
        "2004.13336",
        "1810.04805",
    }


@pytest.mark.parametrize("package", ["lamb_tf", "official_bert"])
def test_every_import_of_a_package_is_a_declared_dependency_of_it(package):
    project = PYPROJECT["project"]
    declared = list(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        if extra != "test" and (extra != "bert" or package == "official_bert"):
            declared += requirements
    modules = {"absl_py": "absl", "tensorflow_cpu": "tensorflow", "mlflow_skinny": "mlflow"}
    names = [re.match(r"[A-Za-z0-9-]+", r).group().lower().replace("-", "_") for r in declared]
    allowed = {modules.get(name, name) for name in names} | set(sys.stdlib_module_names)
    allowed |= {"lamb_tf", package}
    for file in sorted(project_files(package)):
        roots = {module.split(".")[0] for module, _ in imports_of(file)}
        assert roots <= allowed, f"{file} imports {roots - allowed}"


def test_only_what_is_public_in_lamb_tf_is_imported_outside_of_it():
    seen = set()
    for file in sorted(project_files("official_bert", "benchmarks", "docs")):
        for module, name in imports_of(file):
            parts = [*module.split("."), *([name] if name else [])]
            if parts[0] == "lamb_tf":
                seen.add(".".join(parts))
                assert not any(part.startswith("_") for part in parts), f"{file} imports {parts}"
    assert "lamb_tf.telemetry" in seen


def test_private_parts_of_keras_are_used_in_one_module_each_and_listed_there():
    used, ours, listed = {}, set(), {}
    for file in project_files("lamb_tf"):
        names = used[file] = set()
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.Attribute):
                (ours if isinstance(node.ctx, ast.Store) else names).add(node.attr)
            elif isinstance(node, ast.FunctionDef):
                ours.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                ours.add(node.target.id)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                ours.add(node.targets[0].id)
                if node.targets[0].id == "PRIVATE_HOOKS":
                    listed[file] = set(ast.literal_eval(node.value))
    assert set(listed) == {f"lamb_tf/{name}.py" for name in ("_state", "_replicas", "legacy")}
    for file, names in used.items():
        private = {name for name in names if re.match("_[a-z]", name)} - ours
        private -= {"_get_hyper", "_set_hyper", "_serialize_hyperparameter"}  # for subclasses
        private -= {"_asdict"}  # of a named tuple
        # Torch's only names for them.
        private -= {"_foreach_copy_", "_foreach_mul", "_foreach_norm", "_fused_adam_"}
        assert private <= listed.get(file, set()), file


@pytest.mark.slow
def test_the_wheel_installs_and_imports_elsewhere(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"lamb_tf-{VERSION}-py3-none-any.whl"
    packaged = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert packaged == project_files("lamb_tf", "official_bert")
    others = ("lamb_tf/py.typed", "official_bert/py.typed", "page.css", "page.js")
    others = [name.replace("page.", "official_bert/reporting/page.") for name in others]
    assert {*others} <= {*zipfile.ZipFile(wheel).namelist()}

    # A new environment that borrows the installed libraries, but not this working tree: the
    # editable installation is a .pth file, and those of another environment are not read.
    elsewhere = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", elsewhere], check=True)
    python = elsewhere / "bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", wheel],
        check=True,
        capture_output=True,
    )
    libraries = Path(pytest.__file__).parents[1]
    script = (
        "import sys, lamb_tf, official_bert.run_pretraining;"
        "assert sys.prefix in lamb_tf.__file__, lamb_tf.__file__;"
        "print(lamb_tf.LAMB().name)"
    )
    imported = subprocess.run(
        [python, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(libraries), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
    )
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout.split()[-1] == "lamb"

    command = [elsewhere / "bin/lamb-bert", "pretrain", "--no_such_flag"]
    environment = {"PYTHONPATH": str(libraries)}
    refused = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.startswith("lamb-bert pretrain: error: ")


def commands_of(workflow):
    """Every line that a workflow's jobs run."""
    parsed = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())
    assert parsed[True]["pull_request"] is None  # `on:` is YAML's true
    steps = [step for job in parsed["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def test_the_workflows_run_commands_that_exist():
    assert ".ci/run" in commands_of("tests.yml")[0]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = PYPROJECT["project"]["optional-dependencies"]
    for command in commands_of("tests.yml") + commands_of("site.yml"):
        for target in re.findall(r"\bmake (\S+)", command):
            assert target in targets
        for named in re.findall(r"\.\[(.+)\]", command):
            assert set(named.split(",")) <= set(extras)


def test_the_workflows_run_every_python_that_the_classifiers_name():
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    tested = set(jobs["quick"]["strategy"]["matrix"]["python-version"]) | {"3.11"}
    prefix = "Programming Language :: Python :: 3."
    classifiers = [c for c in PYPROJECT["project"]["classifiers"] if c.startswith(prefix)]
    assert tested == {c.removeprefix("Programming Language :: Python :: ") for c in classifiers}


def test_the_hooks_before_a_commit_are_what_make_lint_runs():
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in hooks["hooks"]]
    makefile = (ROOT / "Makefile").read_text()
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    linted = re.findall(r"\$\(BIN\)/(.*?)(?: \.)?$", lint, re.MULTILINE)
    assert entries == linted


@pytest.mark.parametrize("form", ["bug.yml", "feature.yml"])
def test_the_templates_of_issues_are_forms(form):
    parsed = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / form).read_text())
    assert parsed["name"]
    assert parsed["description"]
    for question in parsed["body"]:
        assert question["type"] in ("textarea", "input")
        assert question["attributes"]["label"]
