"""NSQ of a node: its listener, nsqd's HTTP interface, nsqlookupd, auth servers."""
