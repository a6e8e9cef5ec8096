"""Content negotiation of the metrics page."""

from enum import Enum

_FAMILY = "io.prometheus.client.MetricFamily"


class Form(Enum):
    """A format of the metrics page; the value is the Content-Type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    PROTOBUF = f"application/vnd.google.protobuf; proto={_FAMILY}; encoding=delimited"


def choose_form(accept: str) -> Form:
    """Returns the format with the highest q in an Accept header (RFC 9110, 12.5.1), the first of equals; else text.

    A wildcard selects text. Versions are not compared, because each format has only one. Of the protobuf encodings only
    `delimited` is supported.
    """
    best, preferred = 0.0, Form.TEXT
    for entry in accept.split(","):
        media, *rest = (part.strip() for part in entry.lower().split(";"))
        parameters = {name.strip(): value.strip(' "') for name, _, value in (part.partition("=") for part in rest)}
        form = {"application/openmetrics-text": Form.OPENMETRICS, "text/plain": Form.TEXT}.get(media)
        if media == "application/vnd.google.protobuf":
            requested = (parameters.get("proto"), parameters.get("encoding"))
            form = Form.PROTOBUF if requested == (_FAMILY.lower(), "delimited") else None
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            continue
        if form is not None and best < quality <= 1.0:
            best, preferred = quality, form
    return preferred
