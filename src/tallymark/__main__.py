"""`python -m tallymark` is `tallymark`."""

from tallymark.cli.main import main

main()
