"""The decision in an answer's header, for debugging, and in its trace, through a real Envoy."""

import json

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
from tests.functional.test_traces import collecting


async def test_answers_say_why_they_came_from_where_they_did_only_if_asked(fleet):
    body = {"model": "codellama-13b", "messages": [{"role": "user", "content": "once upon a time " * 200}]}
    async with fleet(
        replicas=2, settings={"decision_metadata": True}, listener={"expose_decision": True}
    ) as running:
        said = []
        for _ in range(2):
            async with running.http.post(f"{running.url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()
                said.append(dict(part.split("=") for part in answer.headers["x-kvring-decision"].split("; ")))
                served = answer.headers["x-kvring-endpoint"]
        names = {endpoint.name: endpoint.address for endpoint in running.endpoints}
        assert names[said[1]["endpoint"]] == served
        assert said[0]["reason"] == "home"
        assert said[0]["cached"].startswith("0/")
        assert not said[1]["cached"].startswith("0/"), "the second time it is thought to be there"
        assert "once upon" not in json.dumps(said)
        async with running.http.post(f"{running.plain_url}/v1/chat/completions", json=body) as answer:
            assert "x-kvring-decision" not in answer.headers, "no decision, no header"


async def test_a_span_joins_the_trace_that_passes_through_envoy(fleet):
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    body = {"model": "codellama-13b", "messages": [{"role": "user", "content": "hello"}]}
    async with collecting() as collector:
        traces = {"endpoint": collector.url, "share": 0}
        async with fleet(replicas=1, settings={"traces": traces}) as running:
            headers = {"traceparent": f"00-{trace}-{span}-01"}
            async with running.http.post(
                f"{running.url}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                assert answer.status == 200
                await answer.read()
            await running.stop_kvring()
        (made,) = collector.spans
        assert made.trace_id.hex() == trace
