"""`python -m holdfast` is the command `holdfast`."""

from holdfast.cli.app import main

main()
