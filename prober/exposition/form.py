"""Which of its forms a metrics page is asked for in."""

from enum import Enum

_FAMILY = "io.prometheus.client.MetricFamily"


class Form(Enum):
    """A form that the page can be written in; its value is the Content-Type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    PROTOBUF = f"application/vnd.google.protobuf; proto={_FAMILY}; encoding=delimited"


def wanted(accept: str) -> Form:
    """The form that an Accept header names with the highest q (RFC 9110, 12.5.1), the first of equals; text if it names none.

    A wildcard names none: whoever takes anything can read text. Versions are not compared; each form has one. Protobuf has other
    encodings, which are not written here.
    """
    best, found = 0.0, Form.TEXT
    for entry in accept.split(","):
        media, *rest = (part.strip() for part in entry.lower().split(";"))
        parameters = {name.strip(): value.strip(' "') for name, _, value in (part.partition("=") for part in rest)}
        form = _form(media, parameters)
        if form is not None and (quality := _quality(parameters.get("q", "1"))) > best:
            best, found = quality, form
    return found


def _form(media: str, parameters: dict[str, str]) -> Form | None:
    if media == "application/vnd.google.protobuf":
        asked = (parameters.get("proto"), parameters.get("encoding"))
        return Form.PROTOBUF if asked == (_FAMILY.lower(), "delimited") else None
    return {"application/openmetrics-text": Form.OPENMETRICS, "text/plain": Form.TEXT}.get(media)


def _quality(text: str) -> float:
    """0 to 1; what is no such number asks for nothing."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0
