"""Metric families of the HTTP side: llama-server's names, and how long first tokens took by where the prompt came from."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mlxcel.http.counters import HttpCounters

_LLAMA_COUNTERS = {  # llama-server's families, without _total -> (attribute, help)
    "llamacpp:prompt_tokens": ("computed_tokens", "Prompt tokens computed"),
    "llamacpp:prompt_tokens_cached": ("cached_tokens", "Prompt tokens taken from the cache"),
    "llamacpp:prompt_seconds": ("prefill_s", "Seconds of prefill"),
    "llamacpp:tokens_predicted": ("completion_tokens", "Tokens generated"),
    "llamacpp:tokens_predicted_seconds": ("decode_s", "Seconds of decoding"),
}


def server_families(counters: HttpCounters) -> Iterator[Metric]:
    """Yield the families; every label value is there from the start."""
    for name, (attribute, text) in _LLAMA_COUNTERS.items():
        yield CounterMetricFamily(name, text, value=float(getattr(counters, attribute)))
    yield GaugeMetricFamily("llamacpp:requests_processing", "Generations that run or wait", value=counters.active)
    yield GaugeMetricFamily("llamacpp:n_tokens_max", "Longest prompt and answer seen", value=counters.longest_tokens)
    for name, text, by_source in (
        ("mlxcel_ttft_by_source_ms", "Time to the first token by where the prompt came from", counters.ttft_by_source),
        ("mlxcel_prefill_tokens_saved", "Prompt tokens not computed, a request", counters.saved_by_source),
    ):
        family = HistogramMetricFamily(name, text, labels=["source"])
        for source, histogram in by_source.items():
            family.add_metric([source], buckets=histogram.cumulative(), sum_value=histogram.total)
        yield family
