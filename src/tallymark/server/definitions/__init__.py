"""Definitions: what there is as one document, and a document made real."""
