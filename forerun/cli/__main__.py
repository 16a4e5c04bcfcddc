"""`python -m forerun.cli` is the `forerun` command."""

from forerun.cli.main import main

main()
