"""Messages in columns, decoded many at a time: a module for each protocol."""
