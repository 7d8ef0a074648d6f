"""Operating system: paths, whole files, locks, child processes, memory, quiet imports."""
