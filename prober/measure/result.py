"""What is known of one probe once it is over."""

from dataclasses import dataclass, field

from prober.measure.outcome import Outcome
from prober.measure.timeline import Timeline


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe: who, when, how it ended, and its timeline.

    request_id: also sent as `X-Request-Id`, so that the probe can be found in the engine's logs
    unix_s: wall clock at the intended time, for people only
    warm_up: a success that pays for a cold engine; cached: a cold prompt that the engine had in its prefix cache
    golden: how the answer to a golden prompt is judged (text, regex, json_schema), None for other prompts
    on_request: a person asked for it: it is shown, and counted nowhere
    rate_limit: `x-ratelimit-remaining-*` as the server sent them; cert_expiry_unix_s: end of its certificate
    """

    target: str
    workload: str
    request_id: str
    unix_s: float
    outcome: Outcome
    detail: str
    timeline: Timeline
    model: str = ""
    engine: str = ""
    asked_prompt_tokens: int = 0
    asked_output_tokens: int = 0
    warm_up: bool = False
    cached: bool = False
    text: str = ""
    golden: str | None = None
    rate_limit: dict[str, float] = field(default_factory=dict)
    cert_expiry_unix_s: float | None = None
    on_request: bool = False
