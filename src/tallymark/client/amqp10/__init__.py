"""The client's adapter for AMQP 1.0."""
