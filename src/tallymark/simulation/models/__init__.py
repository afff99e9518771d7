"""Reference models: for each part of the broker the least program that says what may be seen."""
