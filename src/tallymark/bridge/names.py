"""Names under which every protocol shows what the broker knows of a message, or is told by its
publisher."""

from typing import Final

LARGEST_NUMBER: Final = (1 << 63) - 1


DEDUPLICATION: Final = "x-deduplication-header"
HOP_LIMIT: Final = "x-opt-dead-letter-hop-limit"
LONGEST_ID: Final = 255
"""Maximum number of letters of a deduplication id that is stored as it is; longer ones are
hashed."""
MOST_HOPS: Final = 255
PUBLISHER_NAME: Final = "x-publisher-name"
PUBLISHING_ID: Final = "x-publishing-id"
"""Headers by which a stream accepts each message of a publisher once. In RabbitMQ's stream protocol
they are publisher reference and publishing id."""
ACQUIRED_COUNT: Final = "x-acquired-count"
DEATH_HEADERS: Final = (
    "x-death",
    "x-first-death-reason",
    "x-first-death-queue",
    "x-first-death-exchange",
    "x-last-death-reason",
    "x-last-death-queue",
    "x-last-death-exchange",
)
"""Headers that are always the broker's, whatever the publisher sent [DL-14, DL-18]."""
DELIVERY_COUNT: Final = "x-delivery-count"
STREAM_OFFSET: Final = "x-stream-offset"


def checked_number(name: str, number: int) -> tuple[str, int]:
    """Return a publisher's name and number, or ("", 0) if they are out of range."""
    if 0 < len(name) <= LONGEST_ID and 0 <= number <= LARGEST_NUMBER:
        return name, number
    return "", 0
