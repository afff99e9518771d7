"""Traces on request: spans of what the broker does with messages that their publishers trace."""
