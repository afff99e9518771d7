"""The engine: pure and deterministic. Commands and time in, effects and records out."""
