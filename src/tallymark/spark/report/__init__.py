"""Report on messages: latencies, redeliveries, dead-letter paths, consumers, credit.

    from tallymark.spark import pipelines
    found = pipelines.report(pipelines.read_ledger(spark, Path("tallymark-data")))
    Path("report.html").write_text(found.html())

docs/pipelines.md says what stands where.
"""

from __future__ import annotations

from tallymark.spark.report.reporting import Report, report

__all__ = ["Report", "report"]
