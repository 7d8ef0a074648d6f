r"""Writes a report of a run: one HTML file with its curves, trust ratios, settings and scores.

    lamb-bert report demo_output/model

The file needs no other file and no network. An unfinished run can be reported too.
"""

import dataclasses
import datetime
import os
import pathlib

from official_bert.commands import commands
from official_bert.commands.arguments import Arguments
from official_bert.reporting import contents, page
from official_bert.system import local_paths, whole_files
from official_bert.system.settings import documented, setting


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(Arguments):
    """The settings of the command; `arguments` is the model directory."""

    arguments: tuple[str, ...] = ()
    output: str | None = setting(
        "HTML file to write. Default: report.html in the model directory.", None
    )


def write_report(
    model_dir: str | os.PathLike, output: str | os.PathLike | None = None
) -> pathlib.Path:
    """Writes the report of a run as one HTML file.

    Args:
        model_dir: The model directory of a run, or the output folder of fine-tuning.
        output: The file; default: `report.html` in `model_dir`.

    Returns:
        The path of the file.

    Raises:
        ValueError: if the folder holds no run, its `run.json` is damaged, or a path is an address.
        OSError: if a file cannot be read or written.

    Example:

    >>> import official_bert.report
    >>> official_bert.report.write_report("demo_output/model")    # doctest: +SKIP
    PosixPath('demo_output/model/report.html')
    """
    local_paths.require_local(model_dir=model_dir, output=output)
    found = contents.read(pathlib.Path(model_dir))
    path = pathlib.Path(output or found.folder / "report.html")
    local_paths.require_file_name(output=path)
    whole_files.write_text(path, page.render(found, datetime.datetime.now()))
    return path


def main(args: Report) -> None:
    if len(args.arguments) != 1:
        raise ValueError(
            f"the argument must be one model directory; got {len(args.arguments)}. Usage: "
            "lamb-bert report MODEL_DIR"
        )
    print(write_report(args.arguments[0], args.output))


if __name__ == "__main__":
    commands.run(main, Report)
