"""Limits that the operating system sets to a process."""

import resource


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to what the system allows at most; return it.

    A server needs a descriptor a connection, and the usual soft limit of 1024 exists for the
    sake of programs that use ``select``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
