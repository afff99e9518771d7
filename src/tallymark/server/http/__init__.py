"""The HTTP interface: management's listener, guards, and the operations that Spark uses."""
