"""Users, log-ins, rights, limits, TLS, and the audit of all of them."""
