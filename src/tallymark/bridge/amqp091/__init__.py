"""One AMQP 0-9-1 client: wire events to engine commands, engine effects to frames."""
