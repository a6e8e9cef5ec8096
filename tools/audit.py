"""Known weaknesses of every locked version, by pip-audit: exit code 1 for one that is known, 2 where it could not be asked.

A service that does not know a package, as a mirror may not, is no good news: pip-audit then skips it and ends with 0.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements.image.lock", "requirements.build.lock", "requirements.uv.lock")
SERVICES = ("pypi", "osv")
TIMEOUT_S = 600


def asked(service: str) -> list[dict[str, Any]] | None:
    """What a service says of each package; None where it gave no answer."""
    locks = [word for lock in LOCKS for word in ("--requirement", str(ROOT / lock))]
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off"]
    command += ["--timeout=15", f"--vulnerability-service={service}", "--format=json", *locks]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return found


def judged(answers: dict[str, list[dict[str, Any]] | None]) -> tuple[int, str]:
    """The exit code, and a sentence. answers: of each service; a package counts as asked about where one of them knew it."""
    known: dict[str, set[str]] = {}
    for found in answers.values():
        for each in found or ():
            name = f"{each['name']} {each.get('version', '')}".strip()
            if "skip_reason" in each:
                continue
            known.setdefault(name, set()).update(weakness["id"] for weakness in each.get("vulns", ()))
    names = {each["name"] for found in answers.values() for each in found or ()}
    skipped = len(names - {name.split(" ")[0] for name in known})
    bad = [f"{name}: {', '.join(sorted(weak))}" for name, weak in sorted(known.items()) if weak]
    if bad:
        return 1, "known weaknesses:\n" + "\n".join(bad)
    if skipped or not known:
        silent = [service for service, found in answers.items() if found is None]
        said = f"no answer from {', '.join(silent)}; " if silent else ""
        return (
            2,
            f"not audited: {said}{skipped} of {len(names)} packages were not known to who did answer. Nothing is known of them",
        )
    return 0, f"{len(known)} locked packages, no known weakness"


def main() -> None:
    """Ask one service, and the next one where that left questions open."""
    answers: dict[str, list[dict[str, Any]] | None] = {}
    code, said = 2, ""
    for service in SERVICES:
        answers[service] = asked(service)
        code, said = judged(answers)
        if code != 2:
            break
    print(f"audit: {said}", file=sys.stderr if code else sys.stdout)
    sys.exit(code)


if __name__ == "__main__":
    main()
