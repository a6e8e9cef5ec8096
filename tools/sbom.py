"""Writes an SBOM of its environment as CycloneDX 1.6 JSON on standard output; the output is reproducible.

Names, versions and dependencies come from the metadata of the installed packages; the timestamp is SOURCE_DATE_EPOCH (seconds).
Arguments are files in the format of `var/lib/dpkg/status`, whose Debian packages are included.
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
    """The normalized name of a Python package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def component(distribution: Distribution) -> dict[str, Any]:
    """An installed package."""
    name = canonical(distribution.metadata["Name"])
    purl = f"pkg:pypi/{name}@{distribution.version}"
    entry: dict[str, Any] = {
        "type": "application" if name == SUBJECT else "library",
        "bom-ref": purl,
        "name": name,
        "version": distribution.version,
        "purl": purl,
    }
    metadata = distribution.metadata
    if "License-Expression" in metadata:
        entry["licenses"] = [{"expression": metadata["License-Expression"]}]
    elif "License" in metadata and "\n" not in metadata["License"].strip():
        entry["licenses"] = [{"license": {"name": metadata["License"].strip()}}]
    return entry


def debian(status: str) -> list[dict[str, Any]]:
    """Components of the packages in a dpkg status file."""
    packages = [
        dict(re.findall(r"^(\S+): (.*)$", paragraph, re.MULTILINE)) for paragraph in status.strip().split("\n\n")
    ]
    purls = {
        package["Package"]: f"pkg:deb/debian/{quote(package['Package'])}@{quote(package['Version'])}"
        f"?arch={package['Architecture']}"
        for package in packages
    }
    return [
        {"type": "library", "bom-ref": purl, "name": name, "version": package["Version"], "purl": purl}
        for package, (name, purl) in zip(packages, purls.items(), strict=True)
    ]


def needed(distribution: Distribution) -> set[str]:
    """Names of all requirements; markers and extras are not evaluated."""
    return {canonical(re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0]) for line in distribution.requires or ()}


def document(installed: list[Distribution], system: list[dict[str, Any]], epoch: int) -> dict[str, Any]:
    """The SBOM, whose subject is the prober. system: Debian packages. Raises LookupError if the prober is not installed."""
    parts = {part["name"]: part for part in map(component, installed)}
    if SUBJECT not in parts:
        raise LookupError(f"{SUBJECT} is not installed in {sys.prefix}: run this with the Python of its environment")
    depends = [
        {
            "ref": parts[canonical(distribution.metadata["Name"])]["bom-ref"],
            "dependsOn": sorted(parts[name]["bom-ref"] for name in needed(distribution) & parts.keys()),
        }
        for distribution in installed
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
        "dependencies": sorted(depends, key=lambda entry: str(entry["ref"])),
    }


if __name__ == "__main__":
    system = [part for status in sys.argv[1:] for part in debian(Path(status).read_text())]
    sbom = document(list(distributions()), system, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    sys.stdout.write(json.dumps(sbom, indent=1) + "\n")
