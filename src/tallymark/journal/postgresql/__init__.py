"""The journal on PostgreSQL: the tables are the journal, the local files are a cache of them.

schema      the tables, and what makes them
url         the database's URL, as it may be seen
connection  connections to whichever server takes writes
errors      what ends a leader
home        what the journal writes through
teller      notifications to brokers that follow
"""
