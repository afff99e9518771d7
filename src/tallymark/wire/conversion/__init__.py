"""Conversion of messages, values and addresses between protocols: the part of docs/conversion.md
that brokers, clients and Spark share: values, and the section of properties in front of a body."""
