"""Bridges: wire events to engine commands and back, one per protocol. Pure: no I/O, no clock."""
