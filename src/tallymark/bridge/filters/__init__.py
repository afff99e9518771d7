"""Filters that AMQP 1.0 consumers ask for: SQL filters, property filters, selectors."""

from tallymark.bridge.filters.attach import CAPABILITIES, filters_of
from tallymark.bridge.filters.errors import FilterError

__all__ = ["CAPABILITIES", "FilterError", "filters_of"]
