"""`python -m skerry`: the same as the `skerry` command."""

from skerry.cli.main import main

main()
