"""Slow consumers: the policies of a node, and what is done about them."""
