"""A runner dies with its parent: nobody else would end it, and nobody could reach it.

Owns the two ways to learn of it: the kernel's signal where there is one, and a look every quarter
of a second. Refuses to believe the signal alone, since the kernel also sends it when only the
thread of the parent ends that started this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

#: From <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
#: As often as other runners look.
_LOOK_SECONDS = 0.25


def die_with_parent(parent: int) -> None:
    """Ends this process at once when the parent, known by its id, is not its parent any more."""

    def look(*_: Any) -> None:
        if os.getppid() != parent:
            # Whoever read this may have been the parent.
            with suppress(OSError):
                os.write(2, b"delta-runner: the parent is gone\n")
            # At once: the callers were in it, and what it left must not go on.
            os._exit(1)

    def watch() -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            look()

    _ask_kernel(look)
    # It may have gone before the kernel was asked.
    look()
    threading.Thread(target=watch, name="delta-runner parent", daemon=True).start()


def _ask_kernel(look: Any) -> None:
    if sys.platform != "linux":
        return
    signal.signal(signal.SIGUSR2, look)
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGUSR2), 0, 0, 0)
    except (OSError, AttributeError):
        # A C library without it; the watch is left.
        pass
