"""Tests marked `virtual_time` run in the loop of `tests/virtual.py`."""

from tests.conftest import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
