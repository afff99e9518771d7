"""AMQP 0-9-1 as bytes, frames, methods and legal states. Without I/O, without a clock."""
