"""Print the problems of the generated dashboards and exit with 1 if there are any."""

import sys

from prober.daemon.dashboards import documents
from prober.daemon.registry import ALL
from prober.daemon.rules import example_rules
from tools.dashboard_lint.rules import labels_of_series, problems

LABELS = labels_of_series(ALL, example_rules())
PROBLEMS = [f"{name}: {problem}" for name, document in documents().items() for problem in problems(document, LABELS)]
sys.exit("\n".join(PROBLEMS) or None)
