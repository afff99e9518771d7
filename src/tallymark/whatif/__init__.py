"""Recorded traffic, played again through the engine with other settings: yesterday, as it would
have been.

    recording = read_recording(folder)               reading.py: what came in, from the ledger
    past = World(recording).run()                    world.py: the engine, time moved by hand
    other = World(recording, change).run()           changes.py: what is different

Both give the fate of every message of every queue (fates.py), as the ledger does for what happened;
what is said of them is compared in comparison.py. docs/what-if.md is for who asks.
"""
