"""The order of the end-to-end tests, and their sharing of one browser."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# Modules with the longest tests come first, so that all others run beside them.
LONGEST = ("dashboards", "alerting", "page", "demo", "keep_running", "sweeps", "replicas")


class OneBrowser(LoadScopeScheduling):  # type: ignore[misc]
    """Each test is given to a worker by itself, but those of the page together: a browser takes seconds of processor time to start."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if module.endswith("/test_page.py") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneBrowser:
    """pytest 9 has no place for the groups that xdist 3.8 writes with `--dist loadgroup`."""
    return OneBrowser(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the modules by how long their tests take."""
    ranks = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
