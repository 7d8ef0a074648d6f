"""Shared by all commands: settings as flags, refused flags, exit codes, `lamb-bert`."""
