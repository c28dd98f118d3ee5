"""Completions, models, health, cache routes, metrics, keys and the Host check."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlxcel.http.metrics import REJECT_REASONS
from mlxcel.http.settings import ApiKey, HttpSettings
from tests.http import plain
from tests.http.conftest import Running

USER = [{"role": "user", "content": "hello"}]


def test_completions_take_text_and_the_same_tokens(running: Running) -> None:
    """A prompt as text, in a list, and as its token ids is the same prompt; all reuse one entry (B104)."""
    prompt = "the quick brown fox jumps " * 8
    ids = running.service.tokenizer.encode_prompt(prompt)
    answers = [running.client().completions.create(model="m", prompt=form) for form in (prompt, [prompt], ids, [ids])]
    assert len({request.tokens for request in running.service.requests}) == 1
    assert [answer.usage.prompt_tokens_details.cached_tokens > 0 for answer in answers] == [False, True, True, True]
    assert answers[0].choices[0].text == "hello world"


def test_completion_logprobs_keep_offsets(running: Running) -> None:
    """The older shape has parallel lists; offsets point into the text."""
    choice = running.client().completions.create(model="m", prompt="alpha", logprobs=2).choices[0]
    rows = choice.logprobs
    assert "".join(rows.tokens) == choice.text
    for token, offset in zip(rows.tokens, rows.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)


def test_models_names_the_loaded_model(running: Running) -> None:
    """The list has one entry, which can be read by name; other names are 404."""
    assert [model.id for model in running.client().models.list()] == ["tiny-model"]
    assert running.client().models.retrieve("tiny-model").id == "tiny-model"
    assert plain.get(f"{running.base}/v1/models/other").status_code == 404


@pytest.mark.parametrize("phase", ["loading", "draining", "dead"])
def test_health_and_generation_while_not_ready(running: Running, phase: str) -> None:
    """In every phase but ready health is 503 and generating routes are 503 with Retry-After."""
    running.service.phase = phase
    health = plain.get(f"{running.base}/health")
    assert health.status_code == 503
    if phase == "loading":
        assert health.json() == {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    answer = plain.post(f"{running.base}/v1/chat/completions", json={"messages": USER})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    running.service.phase = "ready"
    assert plain.get(f"{running.base}/health").json() == {"status": "ok"}


def test_cache_routes_ask_the_service(running: Running) -> None:
    """Stats, reset and probe are the service's own answers; a probe uses the tokens of the real request."""
    message = [{"role": "user", "content": "the quick brown fox " * 10}]
    plain.post(f"{running.base}/v1/chat/completions", json={"messages": message})
    probe = plain.post(f"{running.base}/v1/cache/probe", json={"messages": message}).json()
    assert probe["prompt_tokens"] == len(running.service.requests[0].tokens) // 4
    assert probe["cached_tokens"] >= 16
    assert plain.get(f"{running.base}/v1/cache/stats").json()["hits"] == 3
    assert plain.post(f"{running.base}/v1/cache/reset").json() == {
        "cleared": True,
        "freed_bytes": 64,
        "freed_entries": 1,
    }


def test_metrics_have_all_series_from_the_start(serve: Any) -> None:
    """All names and label values are there at once, and requests with odd names add none (B113)."""
    running = serve(HttpSettings(metrics=True))

    def series() -> dict[tuple[str, tuple[Any, ...]], float]:
        text = plain.get(f"{running.base}/metrics").text
        return {
            (sample.name, tuple(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    before = series()
    assert before["mlxcel_prompt_cache_hits_total", ()] == 3
    assert before["mlxcel_prompt_cache_misses_total", ()] == 2
    for reason in REJECT_REASONS:
        assert ("mlxcel_prompt_cache_reject_total", (("reason", reason),)) in before
    for reason in ("lru", "ttl", "capacity"):
        assert before["mlxcel_prompt_cache_evictions_total", (("reason", reason),)] == 0
    for index in range(5):
        body = {"messages": USER, "model": f"가{index}\n", "user": f"u{index}"}
        assert plain.post(f"{running.base}/v1/chat/completions", json=body).status_code == 200
        plain.get(f"{running.base}/nothing/{index}")
    after = series()
    assert set(after) == set(before)
    assert after["mlxcel_requests_total", ()] == 5
    assert after["mlxcel_requests_active", ()] == 0
    assert after["mlxcel_request_ttft_ms_count", ()] == 5


def test_metrics_are_off_by_default(running: Running) -> None:
    """Without the flag the route says 501."""
    assert plain.get(f"{running.base}/metrics").status_code == 501


def test_keys_open_the_api_and_separate_tenants(serve: Any) -> None:
    """Without a known key all but health is 401; two tenants never share an entry."""
    running = serve(HttpSettings(api_keys=(ApiKey("key-a", "a"), ApiKey("key-b", "b"))))
    url = f"{running.base}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "the quick brown fox " * 10}]}
    none, wrong = (plain.post(url, json=body, headers=headers) for headers in ({}, {"authorization": "Bearer wrong"}))
    assert none.json()["error"]["message"] == "No API key was sent; send it as Authorization: Bearer KEY."
    assert wrong.json()["error"]["message"] == "Incorrect API key provided."
    for answer in (none, wrong):
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert plain.get(f"{running.base}/health").status_code == 200
    cached = [
        plain.post(url, json=body, headers=headers).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for headers in ({"authorization": "Bearer key-a"}, {"x-api-key": "key-b"}, {"authorization": "Bearer key-a"})
    ]
    assert cached[:2] == [0, 0]
    assert cached[2] >= 16


def test_admin_takes_its_own_key(serve: Any) -> None:
    """With an admin key set, the admin routes want it, also on loopback."""
    running = serve(HttpSettings(admin_key="root"))
    assert plain.get(f"{running.base}/admin/state").status_code == 401
    answer = plain.get(f"{running.base}/admin/state", headers={"authorization": "Bearer root"})
    assert answer.json() == {"question": "state"}


def test_admin_answers_on_loopback_without_a_key(running: Running) -> None:
    """Each admin route asks its question."""
    for name in ("sweep", "checkpoint", "flush"):
        assert plain.post(f"{running.base}/admin/{name}").json() == {"question": name}


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}], ids=str
)
def test_foreign_hosts_and_origins_are_refused(running: Running, headers: dict[str, str]) -> None:
    """A rebound name or another site's page is refused before anything runs; no CORS header is sent."""
    answer = plain.post(f"{running.base}/v1/chat/completions", json={"messages": USER}, headers=headers)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert running.service.requests == []


def test_the_openapi_document_is_served_without_the_internet(running: Running) -> None:
    """The document lists the routes; no page that loads scripts from elsewhere is served."""
    document = plain.get(f"{running.base}/schema/openapi.json").json()
    assert "/v1/chat/completions" in document["paths"]


def test_a_suspended_cache_is_a_503(running: Running) -> None:
    """A cache that stopped deciding refuses operator commands with its reason; it is no internal error."""
    from mlxcel.service.cache import CacheSuspended

    def refuse(question: str, **arguments: Any) -> Any:
        raise CacheSuspended("the log can't be written")

    running.service.ask = refuse  # type: ignore[method-assign]
    answer = plain.post(f"{running.base}/admin/sweep")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "cache_suspended")
