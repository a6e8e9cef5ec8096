"""Series and panels of the diagnosis."""

from typing import get_args

from prober.exposition.dashboards import queries
from prober.exposition.dashboards.panels import Panel, Query, now, stat, states
from prober.exposition.dashboards.queries import TARGET
from prober.exposition.dashboards.style import GREEN, GREY, ORANGE, RED, YELLOW, index_mapping, words_mapping
from prober.exposition.families import gauge
from prober.features.diagnosis.clues import Name

CAUSE = gauge(
    "llmslo_cause_since_timestamp_seconds",
    "Begin of the present trouble, for each of its causes by the diagnosis, while an SLO is breached or a latency has drifted or "
    "grows. state: confirmed, or probable until most evaluations agree; text: what the cause means, always the same.",
    *("target", "cause", "state", "text"),
)
BOUND_RATIO = gauge(
    "llmslo_decode_bandwidth_bound_ratio",
    "Speed of a decode step as a share of the speed that memory bandwidth allows.",
    "target",
)
CAUSES: tuple[Name, ...] = get_args(Name)
# After the state that names the cause.
CAUSE_WORDS = words_mapping(
    {
        f"{state} {cause}": f"{adverb}{cause.replace('_', ' ')}"
        for cause in CAUSES
        for state, adverb in (("confirmed", ""), ("probable", "probably "))
    },
    ORANGE,
)


def decode_speed() -> Panel:
    """Panel of the decode speed relative to the memory bandwidth's limit."""
    return stat(
        "Decode ÷ memory bound",
        "Speed of a decode step as a share of what memory bandwidth allows. Bad: below 60%; memory bandwidth is not the limit. "
        "No data: the GPU or the model is unknown.",
        "percentunit",
        now(queries.gauge(BOUND_RATIO)),
        steps=((None, ORANGE), (0.6, GREEN)),
        decimals=0,
    )


def causes() -> Panel:
    """Panel of the diagnosed causes over time."""
    return states(
        "What happens",
        "What the prober's diagnosis names while an SLO is breached or a latency has drifted or grows. "
        "Bad: any. Probable: not confirmed yet. Unknown: no mechanism is visible.",
        index_mapping(("no", GREY), ("probable", YELLOW), ("yes", RED), ("unknown", YELLOW)),
        Query(
            f'3 * group by (cause) ({CAUSE}{{{TARGET},cause="unknown"}}) or '
            f'2 * group by (cause) ({CAUSE}{{{TARGET},state="confirmed"}}) or group by (cause) ({CAUSE}{{{TARGET}}})',
            "{{cause}}",
        ),
        width=24,
        height=5,
        empty="no diagnosis: nothing is breached, or no data",
    )
