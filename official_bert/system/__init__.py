"""What the operating system gives: whole files, child processes, memory, disk, quiet imports."""
