"""The `forerun` command."""

from __future__ import annotations

import sys
from importlib import import_module

from forerun.cli.exit_status import status_of
from forerun.cli.interrupts import silent_interrupts
from forerun.errors import ForerunError


def main() -> None:
    """Run the command line; what Forerun refuses is one message and its `status_of`."""
    with silent_interrupts():
        app = import_module("forerun.cli.commands").app
    try:
        app(prog_name="forerun")
    except ForerunError as fault:
        print(f"forerun: {fault.message}", file=sys.stderr)
        sys.exit(status_of(fault))


if __name__ == "__main__":
    main()
