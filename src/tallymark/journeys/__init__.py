"""Journeys of messages, found in the files of a journal: over stored and wire, and nothing else."""
