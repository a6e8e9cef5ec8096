"""Writes what the environment it runs in holds, as CycloneDX 1.6 JSON, on standard output; the same each time.

Names, versions and dependencies come from the installed packages themselves; SOURCE_DATE_EPOCH (seconds) is the time of it.
With a file as dpkg keeps it (`var/lib/dpkg/status`) as its argument, the Debian packages named there are in it too.
"""

import json
import os
import platform
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

SUBJECT = "llm-slo-prober"


def canonical(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def component(distribution: Distribution) -> dict[str, Any]:
    """One installed package."""
    name = canonical(distribution.metadata["Name"])
    purl = f"pkg:pypi/{name}@{distribution.version}"
    said: dict[str, Any] = {
        "type": "application" if name == SUBJECT else "library",
        "bom-ref": purl,
        "name": name,
        "version": distribution.version,
        "purl": purl,
    }
    metadata = distribution.metadata
    if "License-Expression" in metadata:
        said["licenses"] = [{"expression": metadata["License-Expression"]}]
    elif "License" in metadata and "\n" not in metadata["License"].strip():
        said["licenses"] = [{"license": {"name": metadata["License"].strip()}}]
    return said


def debian(status: str) -> list[dict[str, Any]]:
    """The packages that dpkg names, a paragraph each."""
    found = [dict(re.findall(r"^(\S+): (.*)$", paragraph, re.MULTILINE)) for paragraph in status.strip().split("\n\n")]
    purls = {
        said["Package"]: f"pkg:deb/debian/{quote(said['Package'])}@{quote(said['Version'])}?arch={said['Architecture']}"
        for said in found
    }
    return [
        {"type": "library", "bom-ref": purl, "name": name, "version": said["Version"], "purl": purl}
        for said, (name, purl) in zip(found, purls.items(), strict=True)
    ]


def needed(distribution: Distribution) -> set[str]:
    """Names that it requires; whether a marker or an extra holds is seen by what is installed."""
    return {canonical(re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0]) for line in distribution.requires or ()}


def document(found: list[Distribution], system: list[dict[str, Any]], epoch: int) -> dict[str, Any]:
    """The whole list, with the prober as its subject; a LookupError if that is not installed. system: of the distribution"""
    parts = {part["name"]: part for part in map(component, found)}
    if SUBJECT not in parts:
        raise LookupError(f"{SUBJECT} is not installed in {sys.prefix}: run this with the Python of its environment")
    depends = [
        {
            "ref": parts[canonical(distribution.metadata["Name"])]["bom-ref"],
            "dependsOn": sorted(parts[name]["bom-ref"] for name in needed(distribution) & parts.keys()),
        }
        for distribution in found
    ]
    python = f"pkg:generic/python@{platform.python_version()}"
    interpreter = {
        "type": "platform",
        "bom-ref": python,
        "name": "python",
        "version": platform.python_version(),
        "purl": python,
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(), "component": parts.pop(SUBJECT)},
        "components": [interpreter, *(parts[name] for name in sorted(parts)), *system],
        "dependencies": sorted(depends, key=lambda each: str(each["ref"])),
    }


if __name__ == "__main__":
    system = [part for status in sys.argv[1:] for part in debian(Path(status).read_text())]
    said = document(list(distributions()), system, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    sys.stdout.write(json.dumps(said, indent=1) + "\n")
