"""Units: types that say what an int is, so that mypy refuses one in place of another.

They cost nothing: in compiled code, making one is no operation. What is computed from one is a
plain int until it is said to be one again.
"""

from __future__ import annotations

from typing import Final, NewType

UNLIMITED: Final = (1 << 62) - 1
"""More than any count, sequence or time. The largest int that compiled code keeps in a word: one
more, and every comparison with it would be one of objects."""

EngineMs = NewType("EngineMs", int)
"""Engine time: milliseconds since 1970 by a clock without jumps (clock.py). Everything in memory is
noted in it."""
WallMs = NewType("WallMs", int)
"""Wall time: milliseconds since 1970. What is stored, shown, or named by a client is in it."""
Position = NewType("Position", int)
"""Place in the journal: segment number << 32, offset. Negative: see message.NOWHERE, ON_ITS_WAY."""
Ms = NewType("Ms", int)
"""Length of time, or difference of two times, milliseconds. A negative length, where it is allowed:
not set."""
Tag = NewType("Tag", int)
"""Number of a delivery in its session, from 1; never given twice. AMQP 0-9-1's delivery tag."""
PublishNumber = NewType("PublishNumber", int)
"""Number of a publish in its confirming session, from 1."""
QueueSequence = NewType("QueueSequence", int)
"""Number of a message in its queue, from 1: given when it enters, never twice. Where a place in the
order of the queue is meant, which may be later (Slice.shift), it is a plain int."""
LeaseSequence = NewType("LeaseSequence", int)
"""Number of a leased message in its durable subscription, from 0, without gaps."""
MessageId = NewType("MessageId", int)
"""Number of a message in this broker, from 1, the same in every queue that it was routed to."""
