"""What keeping costs the engine thread: copying rows out after each chunk, deciding, recording, and taking a cache apart."""

import time

from benchmarks import workloads
from benchmarks.harness import Bench, once
from benchmarks.lab import Core, assembled, load, pieces_of
from mlxcel.core import commands as cmd
from mlxcel.core.tokens import from_ids

TITLE = "Donation"
LENGTH, CHUNK, ANSWER = 2048, 512, 256


def run(bench: Bench) -> None:
    """Measure the core's part and the copies, each beside its bare equivalent."""
    _core(bench)
    model = bench.need_model()
    engine = load(model, bench.folder)
    length = bench.size(LENGTH, 512)
    pieces = pieces_of(engine, length)
    nbytes = sum(engine.piece_bytes(piece) for piece in pieces)
    cache = assembled(engine, pieces, length + 256)

    def copy_chunk() -> None:
        """What is done after each prefill chunk of 512 tokens."""
        for at in (length - CHUNK, length - CHUNK // 2):
            engine.copy_rows(cache, at, at + CHUNK // 2)

    rounds = bench.size(15, 3)
    took = bench.time(f"copy out {CHUNK} tokens of a cache of {length}", copy_chunk, rounds)
    chunk_bytes = nbytes * CHUNK // length
    bare = _bare_copy(chunk_bytes)
    bench.time(f"memcpy of the same {chunk_bytes // 1000} kB", bare, rounds)
    bench.value("copy out, bytes a second", [chunk_bytes / took], "B/s", "higher")
    started = time.perf_counter()
    engine.prefill(cache, from_ids(workloads.ids("chunk", 64, engine.facts.vocab_size // 2)))
    step = time.perf_counter() - started
    bench.ratio("copying a chunk out / computing it", took, step * CHUNK / 64, note="computing extrapolated from 64")
    took = bench.time(f"assemble a cache of {length} tokens", lambda: _assemble(engine, pieces, length), rounds)
    bench.time(f"memcpy of the same {nbytes // 1_000_000} MB", _bare_copy(nbytes), rounds)
    parts = [engine.piece_parts(piece) for piece in pieces]
    copied = [[p.__class__(p.name, p.dtype, p.shape, bytes(p.data)) for p in piece] for piece in parts]
    bench.time(
        f"pieces of {length} tokens from bytes", lambda: [engine.piece_from_parts(p) for p in copied] and None, rounds
    )
    bench.time(
        f"view pieces of {length} tokens as bytes", lambda: [engine.piece_parts(p) for p in pieces] and None, rounds
    )


def _assemble(engine: object, pieces: list[object], length: int) -> None:
    assembled(engine, pieces, length + 256)


def _bare_copy(nbytes: int) -> object:
    """Return a copy of that many bytes by MLX into fresh memory: the floor of any copy-out."""
    import mlx.core as mx

    source = mx.random.uniform(shape=(nbytes // 4,))
    mx.eval(source)

    def copy() -> None:
        half = source.size // 2
        mx.eval(mx.concatenate([source[:half], source[half:]]))

    return copy


def _core(bench: Bench) -> None:
    """Time a whole request in the core: arrival, three seals, donation; with their records."""
    core = Core(record=True)
    count = bench.size(300, 10)
    core.fill(workloads.forks(bench.seed, count, 600, LENGTH - 600))
    samples = {"arrival": [], "seal": [], "donation": []}
    for number in range(bench.size(100, 5)):
        prompt, name = workloads.ids(f"donated-{number}", LENGTH), f"d{number}"
        tokens, answer = from_ids(prompt), from_ids(workloads.ids(f"said-{number}", ANSWER))
        arrival = core.arrival(tokens, name)
        samples["arrival"].append(once(lambda arrival=arrival: core.run(arrival) and None))
        for length in range(CHUNK, LENGTH, CHUNK):
            seal = cmd.SealPrefix(at_us=core.at_us, request=name, length=length)
            samples["seal"].append(once(lambda seal=seal: core.run(seal) and None))
        donate = cmd.DonatePrefix(at_us=core.at_us, request=name, generated=answer, length=LENGTH + ANSWER)
        samples["donation"].append(once(lambda donate=donate: core.run(donate) and None))
    for step, times in samples.items():
        bench.value(f"{step} of {LENGTH} tokens: decide, record, apply", times)
