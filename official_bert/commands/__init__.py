"""Shared by all commands: settings as flags, refused flags, exit codes, `lamb-bert`.

Also three commands: `compare`, `fill_blanks` and `plots`.
"""
