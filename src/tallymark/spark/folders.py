"""Names of the folders and files that a pipeline keeps beside the rows it lands."""

from __future__ import annotations

from typing import Final

CHECKPOINT: Final = "_checkpoint"
"""Folder under the target: Spark passes over names that begin with an underscore."""
QUARANTINE: Final = "_quarantine"
"""Folder under the table, where no other is named."""
BEGUN: Final = "schema-of-batch.json"
"""File in the query's checkpoint with its last batch and the schema of that batch."""
