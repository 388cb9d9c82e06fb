"""Resident memory of this process, and functions measured in a process of their own. Imports nothing large."""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")


def resident_mib() -> float:
    """What this process has in memory now; where /proc is missing, the most it ever had."""
    return _status("VmRSS")


def peak_mib() -> float:
    """The most that this process has had in memory."""
    return _status("VmHWM")


def _status(name: str) -> float:
    if not _STATUS.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a fork of this process: its memory is its own, and given back afterwards."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)
