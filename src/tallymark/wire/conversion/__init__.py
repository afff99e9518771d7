"""Conversion of messages, values and addresses between protocols: the part of docs/conversion.md
that brokers and clients share. It works on values; encoding is left to its callers."""
