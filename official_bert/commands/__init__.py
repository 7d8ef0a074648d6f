"""Shared by all commands: settings as flags, refused flags, exit codes, `lamb-bert`.

Also the commands that have no name in the official scripts and look at what is trained: `compare`,
`fill_blanks` and `plots`.
"""
