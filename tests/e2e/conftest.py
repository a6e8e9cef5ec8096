"""The order of the end-to-end tests."""

import pytest

LONGEST = ("test_dashboards.py", "test_alerting.py", "test_demo.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that wait longest come first, so that all others run beside them."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
