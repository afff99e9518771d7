"""Messages of one protocol for the consumers of another."""
