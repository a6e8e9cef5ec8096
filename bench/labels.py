"""What do labels of targets cost a page? Bytes and processor time of /metrics of 500 targets with three labels, over those without.

Both registries are filled alike, and pages of the two alternate, so that other work on a shared machine falls on both. Every histogram
has changed since the page before.
"""

import gzip
from random import Random

from bench.report import goal, percentile, show
from bench.scrape import PAGES, filled, timed
from prober.daemon.registry import registry
from prober.exposition import families
from prober.exposition.families import Histogram

TARGETS = 500
LABELS = (("env", "prod"), ("team", "search"), ("tier", "gold"))


def main() -> None:
    """Measure and print."""
    made = {name: registry() for name in ("plain", "labelled")}
    for name, found in made.items():
        filled(found, TARGETS)
        for target in range(TARGETS if name == "labelled" else 0):
            found.label(f"silent-{target}", LABELS)
    times: dict[str, list[float]] = {name: [] for name in made}
    sizes: dict[str, dict[str, int]] = {}
    for _ in range(PAGES):
        for name, found in made.items():
            rng = Random(1)
            for family in found.values():
                for child in family.children.values():
                    if isinstance(child, Histogram):
                        child.observe(*(rng.lognormvariate(-3, 0.5) for _ in range(20)))
            slices, size = timed(families.page(list(found.values()), openmetrics=False))
            times[name].append(sum(slices))
            sizes[name] = {"bytes": size}
    for name, found in made.items():
        page = b"".join(families.page(list(found.values()), openmetrics=False))
        sizes[name] |= {"lines": page.count(b"\n"), "gzipped": len(gzip.compress(page, 6))}
    cost = {name: percentile(of, 0.5) for name, of in times.items()}
    show(
        "labels",
        [
            goal("bytes over those without labels", sizes["labelled"]["bytes"] / sizes["plain"]["bytes"], 1.6, ""),
            goal("the same gzipped", sizes["labelled"]["gzipped"] / sizes["plain"]["gzipped"], 1.2, ""),
            goal("processor time of a page over that without labels", cost["labelled"] / cost["plain"], 1.3, ""),
        ],
        pages={name: {**sizes[name], "ms": round(cost[name], 2)} for name in made},
    )


if __name__ == "__main__":
    main()
