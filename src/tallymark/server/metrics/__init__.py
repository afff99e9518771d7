"""Prometheus metrics, read from the node's state when they are asked for: no cost per message."""
