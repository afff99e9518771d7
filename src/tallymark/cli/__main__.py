"""`python -m tallymark.cli` is `tallymark`."""

from tallymark.cli.main import main

main()
