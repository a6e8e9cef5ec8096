"""The order of the end-to-end tests."""

import pytest

# Modules with the longest tests come first, so that all others run beside them.
LONGEST = ("dashboards", "alerting", "demo", "page", "keep_running", "sweeps", "replicas")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the modules by how long their tests take, and keep those together that share a browser."""
    ranks = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
    for item in items:
        if item.path.name == "test_page.py":
            item.add_marker(pytest.mark.xdist_group("browser"))
