"""Settings of the broker: their kinds, files, and reading them again."""
