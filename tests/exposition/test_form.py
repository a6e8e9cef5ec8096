"""The form of the page that an Accept header asks for."""

import pytest

from prober.exposition.families import Form, choose_form

FAMILY = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        # Prometheus 2.42 without and with --enable-feature=native-histograms, 3.5 likewise, 1.8.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Form.OPENMETRICS,
        ),
        (
            f"{FAMILY};encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8,"
            "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Form.PROTOBUF,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
            "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            Form.OPENMETRICS,
        ),
        (
            f"{FAMILY};encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,*/*;q=0.1",
            Form.PROTOBUF,
        ),
        (f"{FAMILY};encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", Form.PROTOBUF),
        # Least wished for although it is named first.
        (f"{FAMILY};encoding=delimited;q=0.2, application/openmetrics-text;q=0.3", Form.OPENMETRICS),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.3", Form.TEXT),
        (f"text/plain, {FAMILY}; encoding=delimited", Form.TEXT),
        # As loosely as the rules allow.
        ('Application/vnd.google.Protobuf; encoding="delimited" ;proto="io.prometheus.client.MetricFamily"', Form.PROTOBUF),
        # Forms that are not written here, and what is refused.
        (f"{FAMILY};encoding=text", Form.TEXT),
        (f"{FAMILY};encoding=compact-text;q=0.9,application/openmetrics-text;q=0.1", Form.OPENMETRICS),
        ("application/vnd.google.protobuf;proto=other.Family;encoding=delimited", Form.TEXT),
        (f"{FAMILY};encoding=delimited;q=0", Form.TEXT),
        (f"{FAMILY};encoding=delimited;q=nan,application/openmetrics-text;q=2,text/html;q=x", Form.TEXT),
        # Browsers, curl, nothing, nonsense.
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Form.TEXT),
        ("*/*", Form.TEXT),
        ("", Form.TEXT),
        (";,;=;q=", Form.TEXT),
    ],
)  # fmt: skip
def test_the_form_with_the_highest_q_is_served(accept: str, form: Form) -> None:
    """It holds for the headers of each release of Prometheus; a form that was not named is never sent."""
    assert choose_form(accept) is form
