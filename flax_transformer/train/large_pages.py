"""Large pages of memory on a CPU, which the C library asks for where it is told to."""

import os
import platform
from pathlib import Path

import jax

WHO_HAS = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ASK = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"


def large_pages_hint() -> str | None:
    """Say how to have large pages, where Linux gives them to those who ask and this process does not; else None.

    A step on a CPU takes its memory from the system anew, page by page.
    """
    if jax.default_backend() != "cpu" or platform.libc_ver()[0] != "glibc":
        return None
    if "hugetlb" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    try:
        who = WHO_HAS.read_text()
    except OSError:
        return None
    return f"steps on this CPU are faster with {ASK} before the command" if "[madvise]" in who else None
