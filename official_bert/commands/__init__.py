"""What the commands share: settings as flags, refused flags, exit codes, `lamb-bert`."""
