"""The edge: sockets, clocks, files, HTTP. Everything below is pure and is driven from here."""
