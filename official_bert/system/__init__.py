"""The operating system's part: whole files, child processes, memory, disk, quiet imports."""
