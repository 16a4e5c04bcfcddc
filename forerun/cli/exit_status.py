"""The exit status of what Forerun refuses."""

from __future__ import annotations

from forerun.errors import ForerunError, InvalidRequest

UNUSABLE = 2  # as of a wrong command line


def status_of(fault: ForerunError) -> int:
    """Return 2 for a value that cannot be used, whatever gave it; 1 for anything else."""
    return UNUSABLE if isinstance(fault, InvalidRequest) else 1
