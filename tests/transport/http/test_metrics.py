"""Plain numbers that become Prometheus's families."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from skerry.transport.http.metrics import HttpMetrics


def test_requests_are_counted_by_status_and_timed_by_route() -> None:
    measures = HttpMetrics()
    registry = CollectorRegistry()
    registry.register(measures)
    measures.note("/a", "GET", 200, 0.001)
    measures.note("/a", "GET", 200, 0.3)
    measures.note("/a", "GET", 404, 100.0)
    measures.note(None, "GET", 404, 0.005)
    measures.in_flight = 3

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"method": "GET", **labels})

    assert sample("skerry_http_requests_total", route="/a", status="200") == 2
    assert sample("skerry_http_requests_total", route="unmatched", status="404") == 1
    assert sample("skerry_http_request_seconds_count", route="/a") == 3
    assert sample("skerry_http_request_seconds_sum", route="/a") == 100.301
    assert sample("skerry_http_request_seconds_bucket", route="/a", le="0.005") == 1
    assert sample("skerry_http_request_seconds_bucket", route="/a", le="10.0") == 2
    assert sample("skerry_http_request_seconds_bucket", route="/a", le="+Inf") == 3
    assert sample("skerry_http_request_seconds_bucket", route="unmatched", le="0.005") == 1  # bounds count
    assert registry.get_sample_value("skerry_http_requests_in_flight") == 3
