"""The table of settings. Help, environment, `mlxcel config`, the README's table and the tests are all read from here.

Names, variables and defaults of the cache rows follow the prompt cache guide; llama.cpp's spellings stand beside them.
Units stand last in a name: `_s` seconds, `_bytes` bytes. None means that the value follows from the model or machine.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs

from mlxcel.config import kinds
from mlxcel.config.option import Env, Flag, Option, flag, on_off

MODEL = "Model"
SERVER = "Server"
GENERATION = "Generation"
CACHE = "Prompt cache in memory"
SNAPSHOTS = "Session snapshots (models whose state can't be cut by tokens)"
BLOCKS = "Block hashes (APC)"
DISK = "Prompt cache on disk"
DIAGNOSIS = "Diagnosis"


def default_data_dir() -> Path:
    """Return the system's directory for application data of this user."""
    return Path(platformdirs.user_data_dir("mlxcel", appauthor=False))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the daemon. Every field has a default, so that a test can say only what it needs."""

    # fmt: off
    model: Annotated[str | None, Option(
        MODEL, "An mlx-lm model: a directory, or a name on the model hub", kinds.TEXT,
        (flag("-m", "--model"),), (Env("MLXCEL_MODEL"),), default_text="the embedded SmolLM2-135M-Instruct",
    )] = None
    ctx_size: Annotated[int, Option(
        MODEL, "Tokens of context; 0 takes the model's own", kinds.integer(0),
        (flag("-c", "--ctx-size"),), (Env("MLXCEL_CTX_SIZE"),),
    )] = 0
    lora: Annotated[str, Option(
        MODEL, "A LoRA adapter as mlx_lm.lora writes it, PATH or PATH:SCALE; served unfused", kinds.TEXT,
        (flag("--lora"),), (Env("MLXCEL_LORA"),), default_text="none",
    )] = ""
    kv_bits: Annotated[int | None, Option(
        MODEL, "Bits of quantised KV (2, 4 or 8)", kinds.one_of(2, 4, 8),
        (flag("--kv-bits"),), (Env("MLXCEL_KV_BITS"),), default_text="KV is kept as computed",
    )] = None
    kv_group_size: Annotated[int, Option(
        MODEL, "Values that share a scale in quantised KV (32, 64 or 128)", kinds.one_of(32, 64, 128),
        (flag("--kv-group-size"),), (Env("MLXCEL_KV_GROUP_SIZE"),),
    )] = 64
    quantized_kv_start: Annotated[int, Option(
        MODEL, "First position whose KV is quantised; only 0, so that a prefix has one precision", kinds.one_of(0),
        (flag("--quantized-kv-start"),), (Env("MLXCEL_QUANTIZED_KV_START"),),
    )] = 0
    fast_blas: Annotated[bool, Option(
        MODEL, "Linux: let MLX use numpy's OpenBLAS where a C compiler can build the bridge", kinds.BOOL,
        on_off("--fast-blas", "--no-fast-blas"), (Env("MLXCEL_FAST_BLAS"),),
    )] = True

    host: Annotated[str, Option(
        SERVER, "Address to listen on", kinds.TEXT, (flag("--host"),), (Env("MLXCEL_HOST"),),
    )] = "127.0.0.1"
    port: Annotated[int, Option(
        SERVER, "Port to listen on; 0 takes a free one", kinds.integer(0, 65535),
        (flag("--port"),), (Env("MLXCEL_PORT"),),
    )] = 8080
    data_dir: Annotated[Path, Option(
        SERVER, "Where the event log, the disk cache and the embedded model live", kinds.PATH,
        (flag("--data-dir"),), (Env("MLXCEL_DATA_DIR"),), default_text="the system's place for application data",
    )] = msgspec.field(default_factory=default_data_dir)
    api_keys: Annotated[tuple[str, ...], Option(
        SERVER, "A key that clients must send, or a tenant's name, a space and the key; may be given many times", kinds.TEXT,
        (flag("--api-key"),), (Env("MLXCEL_API_KEY"),), default_text="none: every client is served",
        repeat=True, secret=True,
    )] = ()
    api_key_file: Annotated[Path | None, Option(
        SERVER, "A file of keys as above, one a line; empty lines and lines that begin with # don't count", kinds.PATH,
        (flag("--api-key-file"),), (Env("MLXCEL_API_KEY_FILE"),), default_text="none",
    )] = None
    admin_key: Annotated[str, Option(
        SERVER, "The key for /admin; without one /admin answers callers on this machine only", kinds.TEXT,
        (flag("--admin-key"),), (Env("MLXCEL_ADMIN_KEY"),), default_text="none", secret=True,
    )] = ""
    admin_tokens: Annotated[bool, Option(
        SERVER, "Let /admin show the tokens and the text of entries", kinds.BOOL,
        on_off("--admin-tokens"), (Env("MLXCEL_ADMIN_TOKENS"),),
    )] = False
    allowed_hosts: Annotated[tuple[str, ...], Option(
        SERVER, "A name that the Host header may have besides this machine's own; may be given many times", kinds.TEXT,
        (flag("--allowed-host"),), (Env("MLXCEL_ALLOWED_HOST"),), default_text="none", repeat=True,
    )] = ()
    max_queue_depth: Annotated[int, Option(
        SERVER, "Requests that may wait; more are told to come back later", kinds.integer(1),
        (flag("--max-queue-depth"),), (Env("MLXCEL_MAX_QUEUE_DEPTH"),),
    )] = 32
    timeout_s: Annotated[float, Option(
        SERVER, "Seconds that a request may take to its first token; 0 is no limit", kinds.SECONDS,
        (flag("--timeout"),), (Env("MLXCEL_TIMEOUT"),),
    )] = 3600.0
    decode_timeout_s: Annotated[float, Option(
        SERVER, "Seconds that an answer may take after its first token; 0 is no limit", kinds.SECONDS,
        (flag("--decode-timeout"),), (Env("MLXCEL_DECODE_TIMEOUT"),),
    )] = 600.0
    metrics: Annotated[bool, Option(
        SERVER, "Serve Prometheus metrics at /metrics", kinds.BOOL, on_off("--metrics"), (Env("MLXCEL_METRICS"),),
    )] = False

    predict_tokens: Annotated[int, Option(
        GENERATION, "Tokens to generate where a request doesn't say; -1 goes to the end of the context",
        kinds.integer(1, also=(-1,), also_means="-1 for no limit"),
        (flag("-n", "--predict"),), (Env("MLXCEL_PREDICT"),),
    )] = 1024
    prefill_chunk_size: Annotated[int, Option(
        GENERATION, "Prompt tokens computed in one step", kinds.integer(16, 65536),
        (flag("--prefill-chunk-size"), Flag(("--batch-size",), alias=True, help="Same as --prefill-chunk-size")),
        (Env("MLXCEL_PREFILL_CHUNK_SIZE"),),
    )] = 512
    max_batch_size: Annotated[int, Option(
        GENERATION, "Answers that are decoded together", kinds.ROWS,
        (flag("--max-batch-size"),
         Flag(("--parallel",), alias=True, kind=kinds.ROWS_OR_AUTO, help="Same as --max-batch-size; -1 is the default"),
         Flag(("--no-batch",), sets="1", alias=True, help="Same as --max-batch-size 1"),
         Flag(("--no-cont-batching",), sets="1", alias=True, help="Same as --max-batch-size 1"),
         Flag(("--cont-batching",), sets="-1", alias=True, kind=kinds.ROWS_OR_AUTO, help="Changes nothing")),
        (Env("MLXCEL_MAX_BATCH_SIZE"),),
    )] = 4
    kv_cache_budget_bytes: Annotated[int | None, Option(
        GENERATION, "Memory for the KV of running answers", kinds.or_auto(kinds.BYTES),
        (flag("--kv-cache-budget"),), (Env("MLXCEL_KV_CACHE_BUDGET"),),
        default_text="auto: what model and machine leave",
    )] = None
    memory_limit_bytes: Annotated[int | None, Option(
        GENERATION, "Memory to reckon with instead of what the machine reports", kinds.BYTES,
        (), (Env("MLXCEL_MEMORY_LIMIT"),), default_text="what the machine reports",
    )] = None
    headroom_factor: Annotated[float, Option(
        GENERATION, "Weights and KV are counted this many times when free memory is estimated", kinds.number(1.0),
        (), (Env("MLXCEL_HEADROOM_FACTOR"),),
    )] = 1.2

    prompt_cache_enabled: Annotated[bool, Option(
        CACHE, "Keep the KV of finished requests and reuse it", kinds.BOOL,
        (*on_off("--prompt-cache-enabled", "--no-prompt-cache"),
         Flag(("--cache-reuse",), alias=True, kind=kinds.ONLY_ZERO, help="Takes 0 only and changes nothing")),
        (Env("MLXCEL_PROMPT_CACHE_ENABLED"), Env("LLAMA_ARG_CACHE_REUSE", kinds.REUSE_SWITCH)),
    )] = True
    cache_prompt: Annotated[bool, Option(
        CACHE, "False treats each request as one that says cache_prompt: false", kinds.BOOL,
        on_off("--cache-prompt", "--no-cache-prompt"), (Env("LLAMA_ARG_CACHE_PROMPT"),),
    )] = True
    prompt_cache_capacity_bytes: Annotated[int | None, Option(
        CACHE, "Bytes of KV kept in memory; 0 keeps none", kinds.BYTES,
        (flag("--prompt-cache-capacity-bytes"),
         Flag(("--cache-ram",), alias=True, kind=kinds.MEBIBYTES, help="The same in MiB; -1 is no limit")),
        (Env("MLXCEL_PROMPT_CACHE_CAPACITY_BYTES"), Env("LLAMA_ARG_CACHE_RAM", kinds.MEBIBYTES)),
        default_text="from the model, at least 2147483648 (2 GiB)",
    )] = None
    memory_cap_bytes: Annotated[int | None, Option(
        CACHE, "Bytes for all KV together: entries, snapshots, running answers, waiting writes; 0 is no cap", kinds.BYTES,
        (flag("--memory-cap-bytes"),), (Env("MLXCEL_MEMORY_CAP_BYTES"),),
        default_text="what the model's weights leave of the memory",
    )] = None
    prompt_cache_max_entries: Annotated[int, Option(
        CACHE, "Entries kept in memory", kinds.integer(1),
        (flag("--prompt-cache-max-entries"),), (Env("MLXCEL_PROMPT_CACHE_MAX_ENTRIES"),),
    )] = 1024
    prompt_cache_ttl_s: Annotated[float, Option(
        CACHE, "Seconds that an entry stays in memory after its last hit", kinds.SECONDS,
        (flag("--prompt-cache-ttl"),), (Env("MLXCEL_PROMPT_CACHE_TTL"),),
    )] = 3600.0
    prompt_cache_min_prefix: Annotated[int, Option(
        CACHE, "Tokens that a prefix must have to be kept or reused", kinds.integer(1),
        (flag("--prompt-cache-min-prefix"),), (Env("MLXCEL_PROMPT_CACHE_MIN_PREFIX"),),
    )] = 32
    prompt_cache_ranking: Annotated[str, Option(
        CACHE, "What leaves a full memory first: the least recent piece at a branch's end, or whole entries, as the guide has it",
        kinds.choice("leaf-lru", "entry-lru"),
        (flag("--prompt-cache-ranking"),), (Env("MLXCEL_PROMPT_CACHE_RANKING"),),
    )] = "leaf-lru"
    prompt_cache_low_water_percent: Annotated[int, Option(
        CACHE, "A memory budget that is full is drained to this share of it in one go; 100 evicts no more than must be",
        kinds.integer(1, 100),
        (flag("--prompt-cache-low-water"),), (Env("MLXCEL_PROMPT_CACHE_LOW_WATER"),),
    )] = 100
    pin_prefix: Annotated[tuple[Path, ...], Option(
        CACHE, "A file (system prompt, or a chat body as JSON) whose prefix is computed at start and stays; may be repeated",
        kinds.PATH, (flag("--pin-prefix"),), (Env("MLXCEL_PIN_PREFIX"),), default_text="none", repeat=True,
    )] = ()
    strict_template_bucket: Annotated[bool, Option(
        CACHE, "Reuse only between requests of one template signature, as the guide has it", kinds.BOOL,
        on_off("--strict-template-bucket"), (Env("MLXCEL_STRICT_TEMPLATE_BUCKET"),),
    )] = False
    donate_cancelled: Annotated[bool, Option(
        CACHE, "Keep what a cancelled or timed-out prefill had computed", kinds.BOOL,
        on_off("--donate-cancelled"), (Env("MLXCEL_DONATE_CANCELLED"),),
    )] = True
    sweep_interval_s: Annotated[float, Option(
        CACHE, "Seconds between looks for expired entries", kinds.PERIOD,
        (flag("--sweep-interval"),), (Env("MLXCEL_SWEEP_INTERVAL"),),
    )] = 60.0

    snapshot_capacity_bytes: Annotated[int | None, Option(
        SNAPSHOTS, "Bytes of snapshots kept in memory", kinds.BYTES,
        (flag("--prompt-cache-snapshot-capacity-bytes"),), (Env("MLXCEL_PROMPT_CACHE_SNAPSHOT_CAPACITY_BYTES"),),
        default_text="from the model, at least 536870912 (512 MiB)",
    )] = None
    snapshot_max_entries: Annotated[int, Option(
        SNAPSHOTS, "Snapshots kept in memory", kinds.integer(1),
        (flag("--prompt-cache-snapshot-max-entries"),), (Env("MLXCEL_PROMPT_CACHE_SNAPSHOT_MAX_ENTRIES"),),
    )] = 4096
    snapshot_ttl_s: Annotated[float, Option(
        SNAPSHOTS, "Seconds that a snapshot stays in memory after its last hit", kinds.SECONDS,
        (flag("--prompt-cache-snapshot-ttl"),), (Env("MLXCEL_PROMPT_CACHE_SNAPSHOT_TTL"),),
    )] = 7200.0
    boundary_snapshot: Annotated[bool, Option(
        SNAPSHOTS, "Keep a snapshot where the history ends; the variable switches it off", kinds.SWITCH_OFF,
        (), (Env("MLXCEL_DISABLE_BOUNDARY_SNAPSHOT"),),
    )] = True
    cache_warmup: Annotated[bool, Option(
        SNAPSHOTS, "Extend a session's snapshot over the answer in the background; the variable switches it off",
        kinds.SWITCH_OFF, (), (Env("MLXCEL_DISABLE_CACHE_WARMUP"),),
    )] = True

    apc_enabled: Annotated[bool, Option(
        BLOCKS, "Match by blocks too; off by itself for recurrent hybrids", kinds.BOOL,
        on_off("--apc-enabled"), (Env("APC_ENABLED"),),
    )] = True
    apc_block_size: Annotated[int, Option(
        BLOCKS, "Tokens in a block", kinds.integer(1, 4096), (flag("--apc-block-size"),), (Env("APC_BLOCK_SIZE"),),
    )] = 16
    apc_num_blocks: Annotated[int | None, Option(
        BLOCKS, "Blocks kept in memory at most: bounds --prompt-cache-capacity-bytes by the KV of so many", kinds.integer(1),
        (flag("--apc-num-blocks"),), (Env("APC_NUM_BLOCKS"),), default_text="as many as entries and bytes allow",
    )] = None
    apc_hash: Annotated[str, Option(
        BLOCKS, "How blocks are hashed", kinds.choice("sha256", "blake3"), (flag("--apc-hash"),), (Env("APC_HASH"),),
    )] = "sha256"

    disk_capacity_bytes: Annotated[int | None, Option(
        DISK, "Bytes of KV kept on disk; 0 keeps none", kinds.BYTES,
        (flag("--disk-capacity-bytes"),), (Env("MLXCEL_DISK_CAPACITY_BYTES"),),
        default_text="the smaller of 64 GiB and a fifth of the free space",
    )] = None
    disk_ttl_s: Annotated[float, Option(
        DISK, "Seconds after its last hit that an entry lives at all", kinds.SECONDS,
        (flag("--disk-ttl"),), (Env("MLXCEL_DISK_TTL"),),
    )] = 7 * 86400.0
    disk_write_policy: Annotated[str, Option(
        DISK, "Write in the background, only what memory evicts, or nothing (what is there is read)",
        kinds.choice("behind", "on-evict", "off"),
        (flag("--disk-write-policy"),), (Env("MLXCEL_DISK_WRITE_POLICY"),),
    )] = "behind"

    disk_restore: Annotated[str, Option(
        DISK, "Read KV back where that is measured to be sooner than computing it, or always",
        kinds.choice("measured", "always"), (flag("--disk-restore"),), (Env("MLXCEL_DISK_RESTORE"),),
    )] = "measured"

    log_level: Annotated[str, Option(
        DIAGNOSIS, "How much is logged", kinds.choice("debug", "info", "warning", "error"),
        (flag("--log-level"),), (Env("MLXCEL_LOG_LEVEL"),),
    )] = "info"
    apc_trace: Annotated[bool, Option(
        DIAGNOSIS, "One log line for each cache decision", kinds.SWITCH_ON, (), (Env("MLXCEL_APC_TRACE"),),
    )] = False
    # fmt: on

    def __repr__(self) -> str:
        """Keys never get into a log or a traceback."""
        return f"Settings(model={self.model!r}, data_dir={str(self.data_dir)!r}, ...)"

    @property
    def kv_mode(self) -> str:
        """The precision of KV as the engine names it."""
        return "fp" if self.kv_bits is None else f"q{self.kv_bits}g{self.kv_group_size}"

    @property
    def cache_active(self) -> bool:
        """True unless one of the two switches takes the cache away from every request."""
        return self.prompt_cache_enabled and self.cache_prompt

    @property
    def disk_active(self) -> bool:
        """True if the disk is used. What it holds stays there also while the cache is switched off: see `disk_kept`."""
        return self.cache_active and self.disk_kept

    @property
    def disk_kept(self) -> bool:
        """True unless nothing is to be kept on disk."""
        return self.disk_capacity_bytes != 0
