"""The flat form of vLLM's and SGLang's clients: `p99_ttft_ms`, and lists of each request where they were asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from prober.features.experiments.importers.sheet import Sheet, told
from prober.results.result import Load, Request, Result, Stage, Target
from prober.results.stage import QS, stage_of_requests


@dataclass(frozen=True, slots=True)
class Flat:
    """One such tool. names: our latency to its own; must: keys that every file of it has; differs: see `Result`."""

    tool: str
    names: Mapping[str, str]
    must: tuple[str, ...]
    must_not: tuple[str, ...]
    differs: tuple[str, ...]

    def recognises(self, values: Mapping[str, Any]) -> bool:
        """The object has this tool's keys."""
        return all(key in values for key in self.must) and not any(key in values for key in self.must_not)

    def stage(self, sheet: Sheet, index: int) -> tuple[Stage, tuple[Request, ...]]:
        """What one run came to."""
        rate, cap = sheet.number("request_rate"), sheet.count("max_concurrency")
        name = f"{rate:g}/s" if rate is not None else f"concurrency {cap}" if cap is not None else "all at once"
        duration_s, completed = sheet.number("duration"), sheet.count("completed") or 0
        requests = self._requests(sheet, index)
        sent = len(requests) or sheet.count("num_prompts") or completed + (sheet.count("failed") or 0)
        stage = stage_of_requests(name, rate, requests, begin_s=0.0, sending_s=None, duration_s=duration_s)
        if not requests:
            failed = sent - completed
            outcomes = {"ok": completed, **({"failed": failed} if failed > 0 else {})}
            stage = replace(stage, sent=sent, answered=completed, outcomes=outcomes)
        goodput = sheet.number("request_goodput")
        return replace(
            stage,
            # What was asked for with --percentile-metrics; all of it where the lists are there.
            latencies=stage.latencies or self._latencies(sheet, completed),
            prompt_tokens=sheet.number("total_input_tokens"),
            output_tokens=sheet.number("total_output_tokens"),
            good=round(goodput * duration_s) if goodput is not None and duration_s is not None else None,
        ), requests

    def result(self, sheets: list[Sheet], load: Load) -> Result:
        """Several runs are stages of one result; what they were told is the first one's."""
        first = sheets[0]
        pairs = [self.stage(sheet, index) for index, sheet in enumerate(sheets)]
        seconds = sum(stage.duration_s or 0.0 for stage, _ in pairs)
        ended = first.unix_s("date")
        started = ended - seconds if ended is not None else 0.0
        return Result(
            id=first.source,
            kind="run" if len(sheets) == 1 else "grid",
            started_unix_s=started,
            ended_unix_s=started + seconds,
            tool=self.tool,
            target=Target(
                model=first.text("model_id"),
                engine=_engine(first.text("backend")),
                api=_api(first.text("endpoint_type")),
            ),
            load=load,
            stages=tuple(stage for stage, _ in pairs),
            differs=self.differs,
            requests=tuple(request for _, requests in pairs for request in requests),
        )

    def _latencies(self, sheet: Sheet, completed: int) -> dict[str, Any]:
        found = {}
        for latency, name in self.names.items():
            # How many gaps there were is told nowhere.
            count = 0 if latency == "itl" else completed
            if quantiles := told(self._told(sheet, name), count):
                found[latency] = quantiles
        return found

    def _told(self, sheet: Sheet, name: str) -> Iterator[tuple[float, float | None]]:
        for q in QS:
            keys = ("median",) if q == 0.5 else ("max",) if q == 1.0 else ()
            values = [sheet.number(f"{key}_{name}_ms") for key in (*keys, f"p{q * 100:g}")]
            yield q, next((value / 1e3 for value in values if value is not None), None)

    def _requests(self, sheet: Sheet, index: int) -> tuple[Request, ...]:
        lists = {key: sheet.rows(key) for key in ("ttfts", "itls", "latencies", "input_lens", "output_lens", "errors")}
        starts, ttfts = sheet.rows("start_times"), lists["ttfts"]
        if ttfts is None or lists["itls"] is None:
            return ()
        for key, each in [*lists.items(), ("start_times", starts)]:
            if each is not None and len(each) != len(ttfts):
                raise sheet.wrong((key,), f"{len(each)} values", f"the {len(ttfts)} of ttfts")
        begin = min(starts, default=0.0) if starts is not None else 0.0
        return tuple(
            _request(
                Sheet(sheet.source, {key: each[i] for key, each in lists.items() if each is not None}),
                index,
                starts[i] - begin if starts is not None else None,
            )
            for i in range(len(ttfts))
        )


def _request(row: Sheet, stage: int, start_s: float | None) -> Request:
    error = row.text("errors") or ""
    gaps = tuple(float(each) for each in row.rows("itls") or ())
    ttft_s, output = row.number("ttfts") or None, row.count("output_lens") or None
    e2e_s = row.number("latencies") or (ttft_s + sum(gaps) if ttft_s is not None else None)
    decode_s = e2e_s - ttft_s if e2e_s is not None and ttft_s is not None else None
    return Request(
        stage=stage,
        start_s=start_s,
        outcome="failed" if error or ttft_s is None else "ok",
        error=error,
        ttft_s=ttft_s,
        itls_s=gaps,
        tpot_s=decode_s / (output - 1) if decode_s is not None and output is not None and output > 1 else None,
        e2e_s=e2e_s,
        prompt_tokens=row.count("input_lens"),
        output_tokens=output,
    )


def _engine(backend: str | None) -> str | None:
    """The client's backend, unless it is the protocol alone."""
    return None if backend is None or backend.startswith("openai") else backend


def _api(endpoint: str | None) -> str | None:
    return None if endpoint is None else "chat" if "chat" in endpoint else "completions"
