"""Audits all locked versions for known vulnerabilities with pip-audit. Exit code 1: vulnerable; 2: the audit is incomplete.

pip-audit skips packages that a service does not know, such as a mirror, and exits with 0; here they count as not audited.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = (
    "requirements.lock",
    "requirements.image.lock",
    "requirements.build.lock",
    "requirements.release.lock",
    "requirements.uv.lock",
)
SERVICES = ("pypi", "osv")
TIMEOUT_S = 600


def audit(service: str) -> list[dict[str, Any]] | None:
    """Answer of a service for each package; None without an answer."""
    locks = [word for lock in LOCKS for word in ("--requirement", str(ROOT / lock))]
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off"]
    command += ["--timeout=15", f"--vulnerability-service={service}", "--format=json", *locks]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return packages


def judge(answers: dict[str, list[dict[str, Any]] | None]) -> tuple[int, str]:
    """Exit code and message for the answers by service. A package is audited if any service knows it."""
    known: dict[str, set[str]] = {}
    packages = [package for answer in answers.values() for package in answer or ()]
    for package in packages:
        name = f"{package['name']} {package.get('version', '')}".strip()
        if "skip_reason" in package:
            continue
        known.setdefault(name, set()).update(weakness["id"] for weakness in package.get("vulns", ()))
    names = {package["name"] for package in packages}
    skipped = len(names - {name.split(" ")[0] for name in known})
    bad = [f"{name}: {', '.join(sorted(weak))}" for name, weak in sorted(known.items()) if weak]
    if bad:
        return 1, "known weaknesses:\n" + "\n".join(bad)
    if skipped or not known:
        silent = [service for service, answer in answers.items() if answer is None]
        prefix = f"no answer from {', '.join(silent)}; " if silent else ""
        return 2, f"not audited: {prefix}{skipped} of {len(names)} packages are unknown to the services that answered"
    return 0, f"{len(known)} locked packages, no known weakness"


def main() -> None:
    """Ask one service, and the next one if the audit is incomplete."""
    answers: dict[str, list[dict[str, Any]] | None] = {}
    code, message = 2, ""
    for service in SERVICES:
        answers[service] = audit(service)
        code, message = judge(answers)
        if code != 2:
            break
    print(f"audit: {message}", file=sys.stderr if code else sys.stdout)
    sys.exit(code)


if __name__ == "__main__":
    main()
