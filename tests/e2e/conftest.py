"""The order of the end-to-end tests."""

import pytest

# Modules that take longest come first, so that all others run beside them; each module runs in one process.
LONGEST = ("deciding", "keep_running", "dashboards", "rows", "alerting", "page", "demo", "sweeps")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the modules by how long they take."""
    ranks = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
