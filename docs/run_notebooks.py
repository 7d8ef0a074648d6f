"""Runs the notebooks of docs/notebooks and stores their outputs: `make notebooks`.

    python docs/run_notebooks.py [NAME.ipynb …]

Each runs in an empty folder, in a kernel of its own. Execution times and counts of earlier runs are
not stored; a notebook that raises an error is left unchanged.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"
TIMEOUT = 1800  # seconds per cell, on a busy machine
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    paths = [str(FOLDER.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]  # this `python` first
    environment = os.environ | _ENVIRONMENT
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.pathsep.join(programs)}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    for number, cell in enumerate(code_cells(notebook), 1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if not _is_stderr(output)]
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _is_stderr(output):
    """Whether it is an output on stderr, where libraries warn about the machine."""
    return output.output_type == "stream" and output.name == "stderr"


def main(names: list[str]) -> None:
    for path in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        print(path.name, flush=True)
        nbformat.write(run(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
