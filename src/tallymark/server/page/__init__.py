"""The page: what a browser shows of a broker. How to add to it is in docs/internals/page.md."""
