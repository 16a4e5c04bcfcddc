"""Runs a command that cannot outlive the process that launched it.

Started as a script of its own (`python -I -S tether.py PARENT_PID NICENESS COMMAND …`), so that nothing of Forerun is
imported and nothing runs between fork and exec in the launcher. The kernel's parent-death signal survives
exec, so even a launcher that is killed with SIGKILL leaves nothing behind. It fires when the launching
*thread* ends: launch from the main thread. Linux only; elsewhere the command runs untethered.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tether(parent: int) -> None:
    """From now on this process is killed when `parent`, the pid that launched it, ends."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the launcher ended before its command began")


if __name__ == "__main__":
    tether(int(sys.argv[1]))
    os.nice(int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 (the launcher's own command)
