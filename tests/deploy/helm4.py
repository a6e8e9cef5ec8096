"""Helm 4, as the library that it is: `helm4.py CHART RELEASE NAMESPACE`, values as JSON on standard input, manifests as YAML out.

In a process of its own, since a Go runtime takes over the signals of the one that it is loaded into.
"""

import json
import sys

import helm_python  # type: ignore[import-not-found]  # in no environment of the project: tools/helm.sh unpacks it


def main(chart: str, release: str, namespace: str) -> None:
    with helm_python.Chart.load(chart) as loaded:
        files = loaded.render(json.load(sys.stdin), name=release, namespace=namespace)
    print("\n---\n".join(text for path, text in sorted(files.items()) if path.endswith(".yaml")))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except helm_python.HelmError as problem:
        sys.exit(str(problem))
