"""Outcomes: the ways in which a client ends a delivery. [amqp-1.0 §3.4]"""

from __future__ import annotations

from typing import Final

ACCEPTED: Final = 1
"""Outcome: acknowledged. [amqp-0.9.1 basic.ack]"""
REJECTED: Final = 2
"""Outcome: rejected for good; a failed delivery. [amqp-0.9.1 basic.reject, requeue=false]"""
RETURNED: Final = 3
"""Outcome: requeued, not counted as a failure. [amqp-1.0 §3.4.4 released]"""
FAILED: Final = 4
"""Outcome: requeued, counted as a failure. [amqp-0.9.1 basic.reject, requeue=true]"""
DISCARDED: Final = 5
"""Outcome: rejected for good, not counted as a failure [DL-5]. [basic.nack, requeue=false]"""
NACKED: Final = 6
"""Outcome: requeued, counted as a failure if the queue's delivery limit counts nacks [DL-5].
[amqp-0.9.1 basic.nack, requeue=true]"""
