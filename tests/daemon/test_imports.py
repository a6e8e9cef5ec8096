"""What a start loads, and what it leaves for when it is needed: each module costs memory and processor time in every process."""

import subprocess
import sys

import pytest

# The top-level packages that the measuring process needs; another one is a decision, with its megabytes.
OF_THE_DAEMON = {
    *(
        "aiohttp",
        "apscheduler",
        "httptools",
        "jinja2",
        "markupsafe",
        "orjson",
        "prober",
        "prometheus_client",
        "pydantic",
    ),
    *("pydantic_core", "typer", "typing_extensions", "yaml"),
    # of these packages
    *("aiohappyeyeballs", "aiosignal", "annotated_doc", "annotated_types", "attr", "frozenlist", "idna", "multidict"),
    *("propcache", "shellingham", "typing_inspection", "tzlocal", "yarl"),
}
OF_A_COMMAND = {
    *(
        "apscheduler",
        "httptools",
        "orjson",
        "prober",
        "pydantic",
        "pydantic_core",
        "typer",
        "typing_extensions",
        "yaml",
    ),
    *("annotated_doc", "annotated_types", "shellingham", "typing_inspection", "tzlocal"),
}


def loaded_by(code: str) -> set[str]:
    """Names of all modules that are loaded after this code."""
    program = f"import sys; {code}; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    )


def packages(modules: set[str]) -> set[str]:
    """Top-level packages from outside the standard library, without files of the environment."""
    names = {module.partition(".")[0] for module in modules if not module.startswith("_")}
    return names - sys.stdlib_module_names - {"cython_runtime", "sitecustomize"}


@pytest.mark.parametrize(
    ("code", "known"),
    [
        pytest.param("import prober.cli.run, prober.daemon.app", OF_THE_DAEMON, id="daemon"),
        pytest.param(
            "import prober.cli.rules, prober.cli.check, prober.daemon.configuration_file", OF_A_COMMAND, id="check"
        ),
    ],
)
def test_a_process_loads_only_the_packages_that_it_needs(code: str, known: set[str]) -> None:
    """Not numpy, which takes 8 MB or more, and nothing that only some configurations use: RE2, bcrypt, JSON Schema, Markdown,
    DNS, Grafana's client and dashboards.

    Commands that check a configuration serve nothing, and what starts the process of an estimate, a megabyte, comes with it.
    """
    loaded = loaded_by(code)
    assert packages(loaded) <= known
    assert loaded.isdisjoint({"multiprocessing.context", "prober.daemon.dashboards"})


def test_an_estimate_loads_numpy() -> None:
    """The module that the daemon does not load is the one that the estimate's process runs."""
    assert "numpy" in loaded_by("import prober.features.capacity.estimate")
