"""`tallymark demo`: the main job as a play in scenes.

A package of its own, beside `tallymark`: it uses the broker as any program does, over its sockets,
with the client, stock clients and Spark. What it needs is the extra `tallymark[demo]`.
"""
