"""Settings shared by the commands that read text."""

import dataclasses

from official_bert.commands.arguments import Arguments
from official_bert.data import corpus
from official_bert.system.settings import documented, setting


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Arguments):
    """Text to read."""

    input_file: str | list[str] = setting(
        "Input text: comma-separated files, globs or folders. Files may be compressed."
    )
    input_format: str = setting("Format of the text.", "auto", choices=corpus.FORMS)
    json_field: str | None = setting("Text field of JSON lines. Default: text.", None)
    skip_bad_lines: bool = setting("Leave out unreadable lines, and count them.", False)
