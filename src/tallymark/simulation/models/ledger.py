"""The ledger: what the journal says of every queue, against what the newest checkpoint claims.

It is decoded and balanced by the code with which Spark jobs do it, which shares none with the
broker's own restart.
"""

from __future__ import annotations

from pathlib import Path

from tallymark.simulation.violated import Violated
from tallymark.spark import reconcile
from tallymark.spark.ledger_files import LedgerIncomplete


def check_ledger(folder: Path) -> bool:
    """Check the equation of every queue in a data folder that no broker is using; return False
    where there is no checkpoint yet, which has the claims. Raises Violated."""
    if not any(path.suffix == ".checkpoint" for path in folder.iterdir()):
        return False
    try:
        found = reconcile.run(None, folder, None)
    except (LedgerIncomplete, FileNotFoundError) as error:
        raise Violated(f"ledger: {error}") from error
    if not found.balanced:
        wrong = [one for one in found.accounts if one.difference]
        raise Violated(f"ledger: {found.faults[:3]}, {wrong[:3]}")
    return True
