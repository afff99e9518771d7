"""Iceberg tables: each batch once, whoever comes between. Without Spark; the catalog is a file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.long import long

pytest.importorskip("pyiceberg", reason="pip install 'tallymark[iceberg]'")

NAME = "lake.orders"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    from pyiceberg.catalog.sql import SqlCatalog

    made = SqlCatalog(
        "lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    made.create_namespace("lake")
    yield made
    made.close()


def rows(first: int, count: int, **more: Any) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "body": [b"%d" % n for n in range(first, first + count)],
            "headers": pa.array([[("n", "1")]] * count, pa.map_(pa.string(), pa.string())),
            "date": [date(2026, 11, 22 + n % 2) for n in range(first, first + count)],
            **{name: [value] * count for name, value in more.items()},
        }
    )


def ids(catalog: Any) -> list[int]:
    found = catalog.load_table(NAME).scan(selected_fields=("id",)).to_arrow()
    return sorted(found.column("id").to_pylist())


@long(ci=False)  # the library is not among those of `make test`
def test_a_batch_is_appended_once_in_a_snapshot_that_says_which(catalog: Any) -> None:
    from tallymark.spark.iceberg import append_once, committed

    assert append_once(catalog, NAME, rows(0, 10), "q", 0, ["date"])
    assert not append_once(catalog, NAME, rows(0, 10), "q", 0, ["date"])
    assert append_once(catalog, NAME, rows(10, 5), "q", 1)
    assert not append_once(catalog, NAME, rows(0, 10), "q", 0), "an earlier one, from a hung driver"
    assert append_once(catalog, NAME, rows(15, 5), "another", 0)
    assert ids(catalog) == list(range(20))
    table = catalog.load_table(NAME)
    assert [field.name for field in table.spec().fields] == ["date"]
    said = [one.summary.additional_properties for one in table.metadata.snapshots]
    assert [(one["tallymark.query"], one["tallymark.batch"]) for one in said] == [
        ("q", "0"), ("q", "1"), ("another", "0"),
    ]  # fmt: skip
    # Which batches there are stays known when the snapshots are gone.
    newest = table.current_snapshot().snapshot_id
    gone = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != newest]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    assert committed(catalog.load_table(NAME), "q") == 1
    assert not append_once(catalog, NAME, rows(10, 5), "q", 1)


@long(ci=False)
def test_a_column_that_comes_later_is_added(catalog: Any) -> None:
    from tallymark.spark.iceberg import append_once

    append_once(catalog, NAME, rows(0, 2), "q", 0)
    append_once(catalog, NAME, rows(2, 2, note="new"), "q", 1)
    append_once(catalog, NAME, rows(4, 1), "q", 2)
    found = catalog.load_table(NAME).scan().to_arrow().sort_by("id")
    assert found.column("note").to_pylist() == [None, None, "new", "new", None]
    assert found.column("headers").to_pylist() == [[("n", "1")]] * 5


@long(ci=False)
def test_a_field_that_comes_later_and_a_wider_type_are_taken(catalog: Any) -> None:
    """As `data` gets them, when the schema of bodies grows."""
    from tallymark.spark.iceberg import append_once

    small = pa.struct([("a", pa.int32())])
    large = pa.struct([("a", pa.int64()), ("b", pa.string())])
    for batch, (type, value) in enumerate(
        [(small, {"a": 1}), (large, {"a": 1 << 40, "b": "x"}), (small, {"a": 3})]
    ):
        made = rows(batch, 1).append_column("data", pa.array([value], type))
        assert append_once(catalog, NAME, made, "q", batch)
    found = catalog.load_table(NAME).scan().to_arrow().sort_by("id")
    assert found.column("data").to_pylist() == [
        {"a": 1, "b": None}, {"a": 1 << 40, "b": "x"}, {"a": 3, "b": None},
    ]  # fmt: skip


@long(ci=False)
@pytest.mark.parametrize("there", [False, True])
def test_of_two_drivers_with_one_batch_one_appends(catalog: Any, there: bool) -> None:
    """The second commits between the look and the commit of the first, which hung there."""
    from tallymark.spark import iceberg

    if there:
        iceberg.append_once(catalog, NAME, rows(100, 1), "q", 0)

    class Between:
        """A catalog on which, at its first commit, another driver comes first."""

        def __init__(self) -> None:
            self.came = False

        def __getattr__(self, name: str) -> Any:
            return getattr(catalog, name)

        def load_table(self, name: str) -> Any:
            table = catalog.load_table(name)
            if not self.came:
                self.came = True
                assert iceberg.append_once(catalog, NAME, rows(0, 5), "q", 1)
            return table

    if not there:
        iceberg.append_once(catalog, NAME, rows(100, 1), "other", 0)
    second: Any = Between()
    assert not iceberg.append_once(second, NAME, rows(0, 5), "q", 1)
    assert ids(catalog) == [*range(5), 100]


@long(ci=False)
def test_another_writer_between_costs_a_try(catalog: Any) -> None:
    from tallymark.spark import iceberg

    iceberg.append_once(catalog, NAME, rows(0, 1), "q", 0)
    looked = catalog.load_table(NAME)
    catalog.load_table(NAME).append(rows(1, 1))
    from pyiceberg.exceptions import CommitFailedException

    with pytest.raises(CommitFailedException):
        iceberg._append(looked, rows(2, 1), "q", 1)
    assert iceberg.append_once(catalog, NAME, rows(2, 1), "q", 1)
    assert ids(catalog) == [0, 1, 2]
    assert iceberg.committed(catalog.load_table(NAME), "q") == 1
