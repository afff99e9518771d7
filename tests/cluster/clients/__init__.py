"""Programs that publish or consume with a client library as it comes, and find the leader by a list
of hosts of their own: what a user writes. test_clients.py runs them while the leader is killed.

    python -m tests.cluster.clients.pika_client publish 5672,5673 QUEUE
    python -m tests.cluster.clients.pika_client consume 5672,5673 QUEUE

A publisher numbers its messages and prints `confirmed N` when the broker has said so. It publishes
a number again that was not confirmed, and ends when its stdin is closed. A consumer prints
`received N` and acknowledges it, for ever.
"""
