"""The stored form of what a broker does: rows, annotations, blocks, segments. The engine and the
journal write it, Spark reads it; no I/O."""
