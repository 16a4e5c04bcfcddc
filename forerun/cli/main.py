"""The `forerun` command."""

from __future__ import annotations

import sys
from importlib import import_module

from forerun.cli.interrupts import silent_interrupts
from forerun.errors import ForerunError


def main() -> None:
    """Run the command line; exits 2 for a wrong flag, 1 with one message for what Forerun refuses."""
    with silent_interrupts():
        app = import_module("forerun.cli.commands").app
    try:
        app(prog_name="forerun")
    except ForerunError as fault:
        print(f"forerun: {fault.message}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
