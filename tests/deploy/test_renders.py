"""The kept renders are what Helm makes of the charts now."""

import pytest

from tests.conftest import absent
from tests.deploy.rendering import HELM_3
from tests.deploy.renders import FOLDER, renders


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    if not HELM_3.exists():
        absent(f"no {HELM_3}: `make tools` fetches it where npm is")
    return renders()


def test_the_kept_renders_are_up_to_date(texts: dict[str, str]) -> None:
    """A change of a template, a value or a default is a change of these files, which a reviewer reads."""
    kept = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert kept.keys() == texts.keys()
    stale = [name for name, text in texts.items() if kept[name] != text]
    assert stale == [], "run `make generated`, and look at what it changes"


def test_the_text_of_dashboards_is_in_no_render(texts: dict[str, str]) -> None:
    """It is in dashboards/, and would hide every other change."""
    assert "(dashboards/overview.json)" in texts["everything.yaml"]
    assert max(len(text.splitlines()) for text in texts.values()) < 1000
