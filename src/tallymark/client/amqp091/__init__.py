"""The client's adapter for AMQP 0-9-1."""
