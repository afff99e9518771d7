"""A PostgreSQL of a world, for the journal: what of it the broker uses, in simulated time.

tables        what is committed, and the log of it
transactions  what is under way
statements    what each statement of the journal does
server        sessions, transactions, locks, the synchronous standby, failovers
client        a broker's connection, in the place of psycopg's
"""
