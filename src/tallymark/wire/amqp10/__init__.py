"""AMQP 1.0 as values, sections, frames and legal states, for both ends. Without I/O, without a
clock."""
