"""Which tests run in one process when several processes run them.

Engines are shared by the tests of a process, and take a minute to load. So tests that share engines
stay together, and so do those that start their own, which load while the test before runs.
"""

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "shared engines": ("tests/real_engine/", "tests/engine/guard/test_real"),
    "own engines": (
        "tests/end_to_end/",
        "tests/supervised/",
        "tests/lifecycles/test_real",
    ),
}
"""Beginnings of files; all other tests may run beside anything."""


class EngineScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out groups first, the largest before the others, and then one test after another."""

    def _split_scope(self, nodeid: str) -> str:
        for group, beginnings in GROUPS.items():
            if nodeid.startswith(beginnings):
                return group
        return nodeid
