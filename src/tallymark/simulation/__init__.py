"""A whole broker with its clients, disk, network and clock, in one process, driven by one seed.

    python -m tallymark.simulation --seeds 100

docs/simulation.md describes it.
"""
