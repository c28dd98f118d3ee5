"""The process: one owner of the data directory, an engine thread, an HTTP server, signals, an orderly end."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from mlxcel import bootstrap
from mlxcel.config.places import directory_fault
from mlxcel.config.settings import Settings
from mlxcel.config.tenants import tenant_keys
from mlxcel.listening import advice, take
from mlxcel.pins import pin_files
from mlxcel.pressure import KEEP_SHARE, pressure
from mlxcel.schedule import Jobs
from mlxcel.service.loop import EngineLoop

log = logging.getLogger("mlxcel")

DRAIN_S = 20.0  # running answers may take this long after SIGTERM
CHECKPOINT_LOOK_S = 60.0
CHECK_S = 900.0
NO_TIER = "there is no disk tier"
COMPACT_S = 7 * 86400.0
MEMORY_LOOK_S = 5.0


class _Server(uvicorn.Server):
    """uvicorn with the signals left to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Daemon:
    """`run` returns the exit code: 0 stopped as asked, 3 could not start or the engine died."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.service = bootstrap.new_service(settings)
        self.jobs = Jobs()
        self.exit_code = 0
        self.server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals = 0
        self._stopping = threading.Event()

    def run(self) -> int:
        """Own the data directory, serve until a signal, leave it clean."""
        from storage.errors import DirectoryLocked
        from storage.lock import DirectoryLock
        from storage.private import keep_out_of_backups

        try:
            lock = DirectoryLock(self.settings.data_dir)
        except DirectoryLocked as fault:
            return self._refuse(f"{fault}. Stop it first, or choose another --data-dir.")
        except OSError as fault:
            why = directory_fault(self.settings.data_dir) or fault.strerror
            return self._refuse(f"data directory {self.settings.data_dir} can't be used: {why}")
        with lock:
            refused = keep_out_of_backups(self.settings.data_dir)
            if refused:
                log.debug("the system still backs up or indexes the data directory: %s", refused)
            try:
                listener = take(self.settings.host, self.settings.port)
            except OSError as fault:
                where = f"{self.settings.host}:{self.settings.port}"
                return self._refuse(f"can't listen on {where}: {fault.strerror}. {advice(fault)}.")
            with listener:
                asyncio.run(self._serve(listener))
        return self.exit_code

    def _refuse(self, message: str) -> int:
        print(f"mlxcel: {message}", file=sys.stderr, flush=True)
        return bootstrap.EXIT_UNAVAILABLE

    async def _serve(self, listener: socket.socket) -> None:
        from mlxcel.http.app import create_app

        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signal)
        port = listener.getsockname()[1]
        app = create_app(self.service, http_settings(self.settings, port), self.jobs)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5)
        self.server = _Server(config)
        engine = threading.Thread(target=self._engine_thread, args=(port,), name="engine")
        engine.start()
        try:
            await self.server.serve(sockets=[listener])
        finally:
            self.service.stop(0.0)
            await asyncio.to_thread(engine.join)

    def _signal(self) -> None:
        """First signal: finish what runs, then go. Second: go now."""
        self._signals += 1
        self._stopping.set()
        how = f"finishing running answers (up to {DRAIN_S:.0f} s; another Ctrl-C or SIGTERM stops at once)"
        log.info("stopping: %s", how if self._signals == 1 else "at once")
        self.service.stop(DRAIN_S if self._signals == 1 else 0.0)

    def _engine_thread(self, port: int) -> None:
        try:
            parts = bootstrap.build(self.settings, self.service)
        except bootstrap.StartFailed as fault:
            self.exit_code = self._refuse(str(fault))
            self.service.set_phase("dead", str(fault))
            self._end_server()
            return
        except BaseException:
            log.exception("the daemon could not start")
            self.exit_code = bootstrap.EXIT_UNAVAILABLE
            self.service.set_phase("dead", "the daemon could not start; its log says why")
            self._end_server()
            return
        self.jobs.start(self._chores(parts))
        self._say_hello(port, parts.loop.engine.facts.name)
        if self.settings.pin_prefix:
            self._pin(parts.loop)
        try:
            parts.loop.run()
        except BaseException:
            log.exception("the engine died; the process ends so that its supervisor can start it again")
            self.exit_code = bootstrap.EXIT_UNAVAILABLE
        finally:
            self.jobs.stop()
            bootstrap.close(parts, hurry=lambda: self._signals > 1)
            self._end_server()

    def _pin(self, loop: EngineLoop) -> None:
        """Compute pinned prefixes beside everything else: the daemon answers before they are there."""
        from mlxcel.http.params import holders

        self.service.set_phase("ready", facts=loop.engine.facts)
        whose = holders(http_settings(self.settings, 0))
        work = partial(pin_files, self.settings.pin_prefix, self.service, loop.engine.facts, whose)
        threading.Thread(target=work, name="pin-prefix", daemon=True).start()

    def _chores(self, parts: bootstrap.Parts) -> dict[str, tuple[float, Any]]:
        def sweep() -> None:
            if parts.cache.sweep():
                self.service.post("chore", sweep)

        def checkpoint() -> None:
            if parts.writer.wants_checkpoint():
                parts.cache.checkpoint()

        def relieve() -> None:
            level = pressure()
            if level != "normal":
                self.service.post("chore", partial(parts.loop.questions.shrink, KEEP_SHARE[level]))

        def check() -> Any:
            found = self.service.ask("check")
            if found["broken"]:
                log.error("the cache's state is not whole: %s", "; ".join(found["broken"][:5]))
            return found

        def check_disk() -> Any:
            from storage.lmdb_tier.sample import sample

            if parts.tier is None:
                return NO_TIER
            found = sample(parts.tier, os.urandom, self._stopping.wait)  # here, at a pace that answers don't feel
            if self._stopping.is_set():
                return "the daemon is stopping"
            fate = self.service.ask("disk_checked", pieces=found.pieces, faulty=found.faulty)
            return {"pieces": found.pieces, "bytes": found.nbytes, **fate, "fault": found.fault}

        def compact() -> Any:
            if parts.tier is None:
                return NO_TIER
            before, after = parts.tier.compact()  # on this thread; reads and writes of the tier wait, answers don't
            return {"bytes_before": before, "bytes_after": after}

        return {
            "compact": (COMPACT_S, compact),
            "check": (CHECK_S, check),
            "check_disk": (CHECK_S, check_disk),
            "memory": (MEMORY_LOOK_S, relieve),
            "sweep": (self.settings.sweep_interval_s, lambda: self.service.post("chore", sweep)),
            "checkpoint": (CHECKPOINT_LOOK_S, lambda: self.service.post("chore", checkpoint)),
        }

    def _end_server(self) -> None:
        if self.server is not None:
            self.server.should_exit = True

    def _say_hello(self, port: int, name: str) -> None:
        host = self.settings.host if ":" not in self.settings.host else f"[{self.settings.host}]"
        base = f"http://{host}:{port}"
        key = ' -H "Authorization: Bearer $KEY"' if self.settings.api_keys else ""  # a key itself is never printed
        with contextlib.suppress(OSError):  # where output goes to a full disk there is nobody to tell
            print(
                f"mlxcel serves {name} at {base}\n"
                f"data in {self.settings.data_dir}\n"
                f"try: curl {base}/v1/chat/completions -H 'content-type: application/json'{key} "
                f'-d \'{{"messages": [{{"role": "user", "content": "Say hello."}}], "max_tokens": 32}}\'',
                flush=True,
            )


def http_settings(settings: Settings, port: int) -> Any:
    """Turn the daemon's settings into those of the HTTP side."""
    from mlxcel.http.settings import ApiKey, HttpSettings

    keys = tuple(ApiKey(k.key, k.tenant, k.salt) for k in tenant_keys(settings.api_keys, settings.data_dir))
    return HttpSettings(
        host=settings.host,
        port=port,
        api_keys=keys,
        admin_key=settings.admin_key,
        admin_tokens=settings.admin_tokens,
        allowed_hosts=settings.allowed_hosts,
        metrics=settings.metrics,
        data_dir=str(settings.data_dir),
        default_max_tokens=settings.predict_tokens,
        test_forced_tokens=os.environ.get("MLXCEL_TEST_FORCED_TOKENS") == "1",
    )


def run(settings: Settings) -> int:
    """Run the daemon until a signal; returns the exit code."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    if settings.log_level != "debug":
        for chatty in ("apscheduler", "uvicorn"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
    return Daemon(settings).run()
