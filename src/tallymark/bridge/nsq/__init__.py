"""One NSQ client: wire events to engine commands, engine effects to frames."""
