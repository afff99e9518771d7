"""The command line: flags and exit codes, nothing else."""
