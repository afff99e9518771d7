"""Slow consumers: rules, measurement and actions [SC]."""
