"""What is shown of the caches: what engines say in answers, and what the workers told a file."""

from __future__ import annotations

from pathlib import Path

from prime_inference.adapters.files.cache_reports import STALE_SECONDS, CacheReportsFile
from prime_inference.domain.caches import CacheReport
from prime_inference.engines.mock import MockEngine
from prime_inference.fleet.caches import CacheReports, write_reports
from prime_inference.gateway.statistics import EndpointStatistics

from .conftest import StartGateway
from .scripted_engine import DONE, delta, event, scripted

REPORT = CacheReport(prompt_tokens=10, cached_tokens=7, queue_seconds=0.5)


async def test_cached_prompt_tokens_are_shown_for_each_deployment(start_gateway: StartGateway):
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 1,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    last = event({"choices": [], "usage": usage})
    async with scripted(delta(content="hi"), delta("stop"), last, DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        await gateway.stream()
        await gateway.generations(1)
        answer = await gateway.client.get(
            f"{gateway.control_url}/fleet", headers=gateway.authorization()
        )
        caches = answer.json()["caches"][0]
        assert (caches["cached"], caches["router_hits"], caches["queue_s"]) == (0.8, None, None)
        text = (await gateway.client.get(f"{gateway.control_url}/metrics")).text
    assert "prime_deployment_prompt_tokens_total{" in text
    cached = [one for one in text.splitlines() if one.startswith("prime_deployment_cached_tokens_")]
    (line,) = [one for one in cached if 'deployment="engine-0"' in one]
    assert line.endswith(" 8.0")


async def test_workers_are_asked_before_metrics_and_fleet_are_shown_and_for_nothing_else(
    start_gateway: StartGateway, engine: MockEngine
):
    class Counted:
        asked = 0

        async def refresh(self) -> None:
            self.asked += 1

        def latest(self) -> dict[str, CacheReport]:
            return {"engine-0": CacheReport(prompt_tokens=self.asked)}

    reports = Counted()
    gateway = await start_gateway(engine, cache_reports=reports)
    for path in ("/live", "/ready"):
        await gateway.client.get(gateway.control_url + path)
    assert reports.asked == 0
    text = (await gateway.client.get(f"{gateway.control_url}/metrics")).text
    (line,) = [one for one in text.splitlines() if one.startswith("prime_fleet_prompt_tokens{")]
    assert 'deployment="engine-0"' in line
    assert line.endswith(" 1.0")
    headers = gateway.authorization()
    view = (await gateway.client.get(f"{gateway.control_url}/fleet", headers=headers)).json()
    assert (reports.asked, view["caches"][0]["router_hits"]) == (2, 0.0)


def test_a_report_is_taken_while_it_is_fresh(tmp_path: Path):
    file = tmp_path / "caches.json"
    now = 1000.0
    reports = CacheReportsFile(file, lambda: now)
    assert reports.latest() == {}
    write_reports(file, CacheReports(now, {"a": REPORT}))
    assert reports.latest() == {"a": REPORT}
    now += STALE_SECONDS
    assert reports.latest() == {}


def test_a_broken_file_of_reports_tells_nothing(tmp_path: Path):
    file = tmp_path / "caches.json"
    file.write_bytes(b'{"taken_at": 0, "repo')
    assert CacheReportsFile(file, lambda: 0.0).latest() == {}


def test_the_cached_share_is_of_the_last_half_hour():
    statistics = EndpointStatistics()
    statistics.tokens(0, 100, 0)
    assert statistics.cached_share(0) is None
    statistics.tokens(3600, 100, 90)
    assert statistics.cached_share(3600) == 0.9
    assert (statistics.prompt_tokens, statistics.cached_tokens) == (200, 90)
