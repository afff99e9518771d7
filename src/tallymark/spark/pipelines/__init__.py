"""The pipelines as functions on DataFrames; each is a command too, `tallymark pipeline NAME`.

    from tallymark.spark import pipelines
    letters = pipelines.browse(spark, "parked").where("deaths[0].reason = 'rejected'")
    pipelines.redrive(letters, dry_run=False)

docs/pipelines.md says what each does. A module is imported, and with it Spark, when one of its
functions is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tallymark.spark.land import follow, land, read_queue
    from tallymark.spark.ledger_rows import read_ledger
    from tallymark.spark.pipelines.archives import archive, read_archived
    from tallymark.spark.pipelines.redrives import browse, redrive
    from tallymark.spark.reconcile_spark import reconcile
    from tallymark.spark.report import report
    from tallymark.spark.transitions import transitions

__all__ = [
    "archive",
    "browse",
    "follow",
    "land",
    "read_archived",
    "read_ledger",
    "read_queue",
    "reconcile",
    "redrive",
    "report",
    "transitions",
]

_FROM: Final = {
    "tallymark.spark.land": ("follow", "land", "read_queue"),
    "tallymark.spark.pipelines.archives": ("archive", "read_archived"),
    "tallymark.spark.pipelines.redrives": ("browse", "redrive"),
    "tallymark.spark.ledger_rows": ("read_ledger",),
    "tallymark.spark.reconcile_spark": ("reconcile",),
    "tallymark.spark.report": ("report",),
    "tallymark.spark.transitions": ("transitions",),
    "tallymark.whatif.table": ("read_traffic",),
    "tallymark.whatif.sweep": ("what_if",),  # not of the connector: it needs the engine
}
"""Names by the module they come from."""


def __getattr__(name: str) -> Any:
    for module, names in _FROM.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
