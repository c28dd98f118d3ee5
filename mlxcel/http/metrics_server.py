"""Metric families of the HTTP side: llama-server's names, and how long first tokens took by where the prompt came from."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mlxcel.http.counters import HttpCounters

_LLAMA_COUNTERS = {  # llama-server's families, without _total -> (attribute, help)
    "llamacpp:prompt_tokens": ("computed_tokens", "Prompt tokens computed"),
    "llamacpp:prompt_tokens_cached": ("cached_tokens", "Prompt tokens taken from the cache"),
    "llamacpp:prompt_seconds": ("prefill_s", "Seconds of prefill"),
    "llamacpp:tokens_predicted": ("completion_tokens", "Tokens generated"),
    "llamacpp:tokens_predicted_seconds": ("decode_s", "Seconds of decoding"),
}


def server_families(counters: HttpCounters, load: Callable[[str], float]) -> Iterator[Metric]:
    """Yield the families; every label value is there from the start. `load` gives a figure of the stats, 0 if unknown."""
    for name, (attribute, text) in _LLAMA_COUNTERS.items():
        yield CounterMetricFamily(name, text, value=float(getattr(counters, attribute)))
    waiting, slots = load("queue_depth"), load("slots_total")
    running = max(0.0, counters.active - waiting)
    prompt_rate, predicted_rate = counters.throughput()
    for name, text, value in (
        ("llamacpp:requests_processing", "Generations that run", running),
        ("llamacpp:requests_deferred", "Generations that wait for their turn", waiting),
        ("llamacpp:prompt_tokens_seconds", "Prompt tokens computed a second, since the last scrape", prompt_rate),
        ("llamacpp:predicted_tokens_seconds", "Tokens generated a second, since the last scrape", predicted_rate),
        ("mlxcel_slots_total", "Answers that can be decoded together", slots),
        ("mlxcel_slots_available", "Of those, how many are free", max(0.0, slots - running)),
        ("mlxcel_queue_depth", "Generations that wait for their turn", waiting),
        ("mlxcel_batch_current_size", "Answers that are decoded together now", load("batch_size")),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    yield GaugeMetricFamily("llamacpp:n_tokens_max", "Longest prompt and answer seen", value=counters.longest_tokens)
    for name, text, by_source in (
        ("mlxcel_ttft_by_source_ms", "Time to the first token by where the prompt came from", counters.ttft_by_source),
        ("mlxcel_prefill_tokens_saved", "Prompt tokens not computed, a request", counters.saved_by_source),
    ):
        family = HistogramMetricFamily(name, text, labels=["source"])
        for source, histogram in by_source.items():
            family.add_metric([source], buckets=histogram.cumulative(), sum_value=histogram.total)
        yield family
