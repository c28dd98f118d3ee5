"""An agent that sends its whole history again at each step, with the cache, without it, and after a restart midway."""

from benchmarks import workloads
from benchmarks.harness import Bench
from benchmarks.pages import touch
from benchmarks.servers import Daemon, vocabulary

TITLE = "An agent loop"


def run(bench: Bench) -> None:
    """Play the same loop with the cache on and off, and once with a restart after half of the steps."""
    model = bench.need_model()
    steps, head, result = bench.size(8, 3), bench.size(512, 64), bench.size(96, 24)
    prompts = workloads.agent_loop(bench.seed, steps, head, result, vocabulary(model))
    sums = {}
    for name, flags, restart in (
        ("cache on", (), False),
        ("cache on, restarted midway", (), True),
        ("cache off", ("--no-cache-prompt",), False),
    ):
        data, total = bench.folder / name.replace(" ", "-").replace(",", ""), 0.0
        daemon = Daemon(model, data, *flags)
        try:
            for step, prompt in enumerate(prompts):
                if restart and step == steps // 2:
                    daemon.stop()
                    daemon = Daemon(model, data, *flags)
                touch()
                timing = daemon.client().complete(prompt, 4)
                total += timing.total_s
                bench.value(f"{name}, step {step + 1}", [timing.ttft_s], "s", x=step + 1, series=name,
                            note=f"{timing.cached_tokens} of {timing.prompt_tokens} cached")  # fmt: skip
        finally:
            daemon.kill()
        sums[name] = total
    bench.ratio("whole loop, cache off / on", sums["cache off"], sums["cache on"])
    bench.ratio("whole loop, restarted midway / not", sums["cache on, restarted midway"], sums["cache on"])
