"""Characters in the URLs of a configuration: what a request cannot carry is refused, at its line."""

import pytest

from prober.config.configuration import Configuration
from prober.config.load import load
from prober.config.problems import ConfigError
from prober.measure.engines import DIALECTS

UNSENDABLE = (
    "has a blank, a control character or a character outside ASCII; remove it or percent-encode it, a blank as %20"
)
# Each key that has a URL, on the second line of its file.
PLACES = {
    "targets[0].url": "targets:\n- {{url: {}}}",
    "targets[0].metrics.url": "targets: [{{url: http://h, metrics:\n  {{url: {}}}}}]",
    "targets[0].proxy_url": "targets: [{{url: http://h,\n  proxy_url: {}}}]",
    "prometheus.url": "prometheus:\n  {{url: {}}}\ntargets: [{{url: http://h}}]",
    "grafana.url": "grafana:\n  {{url: {}, auth: {{bearer_token_file: t}}}}\ntargets: [{{url: http://h}}]",
    "discovery[0].http.url": "discovery:\n- http: {{url: {}}}",
    "discovery[0].kubernetes.api_server": "discovery:\n- kubernetes: {{namespaces: [a], api_server: {}}}",
}


def loaded(place: str, url: str) -> Configuration:
    escaped = url.encode("unicode_escape").decode()
    text = PLACES[place].format(f'"{escaped}"')
    return load(text, source="c", engines=DIALECTS, environment={"PATH_": "/s3c ret"}, read=lambda path: path)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "url",
    [
        "http://h/v1 ",
        " http://h/v1",
        "http://h/v 1",
        "http://h:80 /v1",
        "http://h/v1\r\n",
        "http://h/v1\r\nX-Evil: 1",
        "http://h\t/v1",
        "http://h/v1\x7f",
        "http://h/v1\x85",
        "http://h/v\xa01",
        "http://h/caf\xe9",
        "http://h/v1\u200b",
        "http://h/\u2028",
    ],
)
def test_a_character_that_a_request_cannot_carry_is_refused(place: str, url: str) -> None:
    """In every URL, with its place and line and what to do."""
    with pytest.raises(ConfigError) as error:
        loaded(place, url)
    assert str(error.value).startswith(f"c:2: {place}: ")
    assert str(error.value).endswith(UNSENDABLE)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("url", ["http://h/v1", "http://h/v%201", "http://h/caf%C3%A9", "http://caf\xe9.example/v1"])
def test_a_url_of_other_characters_is_taken(place: str, url: str) -> None:
    """Percent-encoded they are sent, and a host may be an international name."""
    loaded(place, url)


@pytest.mark.parametrize("place", ["targets[0].metrics.url", "prometheus.url", "discovery[0].http.url"])
def test_the_query_of_a_page_is_percent_encoded_when_it_is_sent(place: str) -> None:
    """A selector has blanks and other letters; a control character is refused there too."""
    loaded(place, "http://h/federate?match[]={job=~'caf\xe9 a'}")
    with pytest.raises(ConfigError, match="has a blank, a control character"):
        loaded(place, "http://h/federate?match[]=a\n")


def test_the_value_of_a_variable_is_not_shown() -> None:
    """A variable within a URL is percent-encoded; one that is the whole URL is checked, and its value is not shown."""
    assert loaded("prometheus.url", "http://h${PATH_}").prometheus_url == "http://h%2Fs3c%20ret"
    with pytest.raises(ConfigError) as error:
        loaded("prometheus.url", "${PATH_}")
    assert "s3c" not in str(error.value)
