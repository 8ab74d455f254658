"""Dashboard and alert rules name metrics and labels that a gateway exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prime_inference.compose import BillingOptions
from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yml"
DASHBOARD = DEPLOY / "grafana/prime-inference.json"
ENDINGS = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
METRIC = re.compile(r"\b((?:prime|process)_[a-z_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"([a-z_]+)(?:=~|!=|=)")


def expressions(node: Any) -> Iterator[str]:
    """Every PromQL expression of a dashboard."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expr":
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for one in node:
            yield from expressions(one)


async def exported(start_gateway: StartGateway, *engines: MockEngine) -> dict[str, set[str]]:
    """Names of samples that a gateway exports, with the labels of those there are."""
    gateway = await start_gateway(*engines, billing=BillingOptions("sqlite"))
    await gateway.stream()
    text = (await gateway.client.get(f"{gateway.control_url}/metrics")).text
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for ending in ENDINGS.get(family.type, []):
            labels = {label for sample in family.samples for label in sample.labels}
            names[f"{family.name}{ending}"] = labels
    return names


async def test_the_dashboard_and_the_alerts_name_what_a_gateway_exports(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    names = await exported(start_gateway, engine, spare)
    asked = [*expressions(json.loads(DASHBOARD.read_text()))]
    assert len(asked) > 30
    asked += [line for line in ALERTS.read_text().splitlines() if "prime_" in line]
    for expression in asked:
        for name, selector in METRIC.findall(expression):
            if name in ("prime_inference", "prime-inference"):
                continue
            assert name in names, expression
            if names[name]:  # where there are no samples yet, nobody knows the labels
                assert set(LABEL.findall(selector)) <= names[name], expression


def test_every_metric_of_the_fleet_is_on_the_dashboard_or_in_an_alert():
    source = Path(__file__).parents[2] / "src/prime_inference/gateway/fleet_metrics.py"
    shown = DASHBOARD.read_text() + ALERTS.read_text()
    for name in re.findall(r'"(prime_[a-z_]+)"', source.read_text()):
        assert name in shown


def test_the_dashboards_panels_have_ids_of_their_own_and_places_that_do_not_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_alerts_and_they_fire_when_they_should():
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=ALERTS.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
