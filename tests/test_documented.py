"""Everything public is documented, and the documentation is valid: generated parts, links, configurations."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import typer
import yaml

from prober.cli.main import COMMANDS
from prober.cli.run import run
from prober.config.load import load
from prober.config.slos import SloSpec
from prober.config.target import BudgetSpec, Overridable, ProbeSpec, TargetSpec
from prober.config.workloads import WorkloadSpec
from prober.daemon.registry import ALL as ALL_SERIES
from prober.exposition.families import Registry
from prober.measure.engines import DIALECTS
from prober.measure.outcome import BAD
from prober.web.site import Site

ROOT = Path(__file__).parent.parent


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_generated_parts_are_up_to_date() -> None:
    """The generated parts of docs/ and deploy/ equal what docs/generate.py writes."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


FLAGS = [flag for flag in inspect.signature(run).parameters.values() if flag.annotation is not typer.Context]


def test_every_series_flag_command_and_outcome_is_documented() -> None:
    """By name: series in docs/series.md, the daemon's flags in docs/commands.md, commands in README.md, bad outcomes in a runbook."""
    flags = []
    for parameter in FLAGS:
        (option,) = parameter.annotation.__metadata__
        flags.append(option.metavar or (option.param_decls[0] if option.param_decls else option.default))
    names = {
        "docs/series.md": [f"`{declared.name}`" for declared in ALL_SERIES],
        "docs/commands.md": [f"`{name}`" for name in flags],
        "README.md": [f"`prober {command}" for command in COMMANDS],
        "deploy/runbooks/LLMTargetFailing.md": [f"`{outcome}`" for outcome in sorted(BAD)],
    }
    missing = [f"{page}: {name}" for page, each in names.items() for name in each if name not in text(page)]
    assert missing == []


def test_every_series_has_a_test() -> None:
    """That names it, by its public name or its constant, and not only by a panel or a table."""
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    words = set(re.findall(r"\w+", tests))
    declaring = [vars(module) for name, module in sys.modules.items() if re.fullmatch(r"prober\..*series", name)]
    constants = {id(value): name for module in declaring for name, value in module.items()}
    assert [each.name for each in ALL_SERIES if each.name not in tests and constants.get(id(each)) not in words] == []


def test_every_key_is_documented() -> None:
    """By its path, in docs/configuration.md, with a description."""
    page = text("docs/configuration.md")
    for model in (Overridable, SloSpec, WorkloadSpec, TargetSpec, ProbeSpec, BudgetSpec):
        for name, field in model.model_fields.items():
            assert f".{name}` |" in page, (model, name)
            assert field.description, (model, name)


def test_every_page_is_documented() -> None:
    """By its path, in docs/api.md."""
    site = Site(cast(Any, SimpleNamespace()), cast(Any, None), Registry(), cast(Any, None), "", "")
    for route in site.routes():
        assert f"`{route.path}" in text("docs/api.md"), route.path


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "bench/figures.md",
    *sorted((ROOT / "deploy").rglob("*.md")),
]
# Content of the files that the configurations name.
NAMED = {
    "/etc/prober/trace.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n"
}


def test_configurations_of_pages_are_valid() -> None:
    """Every YAML block with targets or a discovery is a valid configuration. Variables that it names are set."""
    checked = set()
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)):
            if (
                re.search("^(targets|discovery):", block, re.MULTILINE) and "\nconfig:\n" not in block
            ):  # not values of the chart
                environment = dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "of-the-environment")
                source = f"{page.stem}-{number}"
                load(block, source=source, engines=DIALECTS, environment=environment, read=NAMED.__getitem__)
                checked.add(source)
    assert {"README-0", "sidecar-1", "fleet-0", "configuration-0", "scaling-0"} <= checked


def test_the_readmes_queries_are_about_its_target() -> None:
    """A reader who runs the smallest configuration gets an answer."""
    configuration, *_ = re.findall(r"```yaml\n(.*?)```", text("README.md"), re.DOTALL)
    (target,) = yaml.safe_load(configuration)["targets"]
    assert set(re.findall(r'\{target="(\w+)"\}', text("README.md"))) == {target["name"]}


def anchors(page: Path) -> set[str]:
    """Return the fragments that the page's headings have, as GitHub makes them. Lines of code blocks are not headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    slugs: list[str] = []
    for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


def test_links_lead_somewhere() -> None:
    """Every relative link names a file, and its fragment a heading of that file."""
    headings = {page.resolve(): anchors(page) for page in PAGES}
    for page in PAGES:
        for path, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
            other = (page.parent / path).resolve() if path else page.resolve()
            assert other.exists(), f"{page.name}: {path} is not there"
            if heading and other.suffix == ".md":
                assert heading in headings[other], f"{page.name}: {other.name} has no heading #{heading}"


def test_every_command_has_a_section() -> None:
    """docs/commands.md has a section for each command, with its exit codes, and README.md links to it."""
    sections = re.split(r"^## ", text("docs/commands.md"), flags=re.MULTILINE)
    for command in COMMANDS:
        (section,) = (section for section in sections if section.startswith(f"prober {command}\n"))
        assert "**Exit codes.**" in section or "exit code" in section, command
        assert f"docs/commands.md#prober-{command})" in text("README.md")


def test_files_named_for_contributors_exist() -> None:
    """Every path in CONTRIBUTING.md that has no placeholder is in the tree."""
    named = re.findall(r"`((?:prober|tests|bench|deploy|docs|tools|dashboards)/[\w./-]*)`", text("CONTRIBUTING.md"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_code_names_pages_that_exist() -> None:
    """A page of docs/ that code, tests, manifests or benchmarks name is in the tree."""
    sources = [
        path
        for folder in ("prober", "bench", "tests", "deploy", "tools")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yaml", ".sh", ".html", ".js"}
    ]
    named = {
        (path.relative_to(ROOT), page)
        for path in sources
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert [f"{path}: {page}" for path, page in sorted(named) if not (ROOT / page).exists()] == []
