"""Shovels: messages from a queue of one broker to another broker, none lost.

plan.py        a shovel, as the configuration or the command line describes it
shovel.py      the state machine: what to do next, without any I/O
parcel.py      a message on its way, and the header that says where it came from
ends.py        source and target, as the runner sees them
amqp.py        AMQP 0-9-1 and AMQP 1.0
tallymark.py   another Tallymark, over HTTP: once, whatever is killed
making.py      source and target of a plan
runner.py      one shovel at work
"""
