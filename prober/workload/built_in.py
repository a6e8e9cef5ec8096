"""Built-in workloads, by name."""

from prober.workload.sessions import SessionWorkload
from prober.workload.shapes import Fixed, Lognormal, Uniform
from prober.workload.workloads import Prefix, Workload


def _lognormal(median: int, low: int, high: int) -> Lognormal:
    return Lognormal(median, 0.8, low, high)


def _phase(prompt: int, output: int, prefix: Prefix | None = None) -> Workload:
    name = f"phase_{prompt}_{output}" + ("_warm" if prefix else "")
    return Workload(name, Fixed(prompt), Fixed(output), prefix)


BUILT_IN: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        # Cheap enough to send all day: about 3 M tokens a day at 0.2/s.
        Workload("probe", Lognormal(128, 0.5, 32, 512), Uniform(16, 48)),
        Workload("chat", _lognormal(500, 50, 4_000), _lognormal(200, 10, 2_000)),
        Workload("code_generation", _lognormal(1_500, 200, 8_000), _lognormal(500, 50, 4_000)),
        Workload("long_context_qa", _lognormal(16_000, 2_000, 128_000), _lognormal(300, 20, 2_000)),
        Workload("summarization", _lognormal(4_000, 500, 32_000), _lognormal(150, 50, 500)),
        # Coding agents (TraceLab, arXiv 2606.30560, 2026): a user's message is followed by 7.8 tool results on average. The median turn
        # adds about 790 tokens, with the previous answer; the mean answer has 523. System prompt and tools have about 3,000 and 13,000
        # tokens (SemiAnalysis, cc-traces-weka-042026). The duration of a tool is an assumption.
        SessionWorkload(
            "agent",
            Lognormal(400, 1.2, 16, 4_000),
            Lognormal(300, 1.0, 16, 2_000),
            Prefix(16_000, 1.0),
            turns=9,
            count=100,
            own_pace=Lognormal(300, 1.0, 20, 10_000),
            tool_results=1.0,
        ),
        # Long documents, answers of a paragraph. No trace of a batch service is published: these are medians of Mooncake's
        # conversations (FAST'25, 12,031 requests: 6,909 and 350 tokens).
        Workload("batch", _lognormal(6_900, 500, 64_000), _lognormal(350, 50, 2_000)),
        _phase(256, 128),
        _phase(2048, 128),
        _phase(256, 1024),
        _phase(2048, 1024),
        _phase(4096, 256, Prefix(2048, 1.0)),
    )
}
