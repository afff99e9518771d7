"""One AMQP 1.0 client: wire events to engine commands, engine effects to frames."""
