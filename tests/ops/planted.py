"""Logs with one planted cause each. Text is one token a character, so that positions can be counted."""

import random
from collections.abc import Callable

from blake3 import blake3

from mlxcel.core import commands as cmd
from tests.ops.driver import Driver, policy

WORDS = [
    "river",
    "stone",
    "cloud",
    "market",
    "winter",
    "signal",
    "copper",
    "garden",
    "letter",
    "bridge",
    "forest",
    "window",
]
BOS = 1


def text_of(ids: list[int]) -> str:
    """Decode tokens that are characters; BOS is spelled out."""
    return "".join("<s>" if token == BOS else chr(token) for token in ids)


def ids_of(text: str) -> list[int]:
    """Encode characters, BOS first."""
    return [BOS, *map(ord, text)]


def words(rng: random.Random, count: int) -> str:
    """Return random words."""
    return " ".join(rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(count))


SYSTEM = "You are a helpful assistant. " + words(random.Random(0), 60)


class Chat:
    """One conversation; `turn` adds a user message and gives the prompt as messages."""

    def __init__(self, session: str, rng: random.Random) -> None:
        self.session, self.rng = session, rng
        self.messages: list[str] = []

    def ask(self) -> str:
        """Add a user message; return it."""
        self.messages.append("\nuser: " + words(self.rng, 12) + "\nbot: ")
        return self.messages[-1]

    def answer(self) -> str:
        """Add an answer; return it."""
        self.messages.append(words(self.rng, 14))
        return self.messages[-1]


Render = Callable[[Chat, int], list[int]]


def render(chat: Chat, number: int) -> list[int]:
    """Return a healthy prompt."""
    return ids_of(SYSTEM + "".join(chat.messages))


def chats(driver: Driver, make: Render = render, sessions: int = 5, turns: int = 5, **more: object) -> Driver:
    """Serve conversations turn by turn, all in parallel. `more`: how to name sessions and templates per request."""
    rng = random.Random(9)
    every = [Chat(f"chat{n}", rng) for n in range(sessions)]
    session = more.get("session", lambda chat, n: chat.session)
    template = more.get("template", lambda chat, n: "t")
    namespace = more.get("namespace", lambda chat, n: 0)
    pause_s = more.get("pause_s", 0.0)
    number = 0
    for _ in range(turns):
        for chat in every:
            chat.ask()
            prompt = make(chat, number)
            answer = chat.answer()
            driver.serve(
                f"r{number}", prompt, list(map(ord, answer)), session=session(chat, number),  # type: ignore[operator]
                template=template(chat, number), namespace=namespace(chat, number),  # type: ignore[operator]
            )  # fmt: skip
            number += 1
            driver.wait(pause_s)  # type: ignore[arg-type]
            driver.run(cmd.SweepExpired(at_us=driver.now_us))
    return driver


def healthy() -> Driver:
    """Conversations under one system prompt."""
    return chats(Driver(policy()))


def doubled_bos() -> Driver:
    """Every other request has BOS twice."""
    return chats(Driver(policy()), lambda c, n: ([BOS] if n % 2 else []) + render(c, n))


def trailing_whitespace() -> Driver:
    """Every other system prompt ends with a space."""
    return chats(Driver(policy()), lambda c, n: ids_of(SYSTEM + (" " if n % 2 else "") + "".join(c.messages)))


def _stamped(stamp: Callable[[int], str]) -> Driver:
    return chats(Driver(policy()), lambda c, n: ids_of("Now: " + stamp(n) + "\n" + SYSTEM + "".join(c.messages)))


def timestamp() -> Driver:
    """The time stands before the system prompt."""
    return _stamped(lambda n: f"2026-09-05 12:{n * 7 % 60:02d}:{n * 13 % 60:02d}")


def request_id() -> Driver:
    """A random id stands before the system prompt."""
    return _stamped(lambda n: blake3(str(n).encode()).hexdigest())


def user_name() -> Driver:
    """A name stands before the system prompt, another for each request."""
    return _stamped(lambda n: f"{'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[n % 26]}{WORDS[n % 12]} {WORDS[n * 5 % 12]}")


def template_drift() -> Driver:
    """Two orders of the same tools, each with its own template signature."""
    tools = [
        f'{{"function": "{name}", "parameters": {{"{name}": "{words(random.Random(7), 4)}"}}}}' for name in WORDS[:4]
    ]
    both = ["".join(tools), "".join(reversed(tools))]
    return chats(
        Driver(policy()), lambda c, n: ids_of(both[n % 2] + SYSTEM + "".join(c.messages)),
        template=lambda c, n: f"signature{n % 2}",
    )  # fmt: skip


def session_keys_change() -> Driver:
    """Each turn comes under another key."""
    return chats(Driver(policy()), session=lambda c, n: f"key{n}")


def under_min_prefix() -> Driver:
    """Short questions under a short system prompt, a limit above it."""
    rng = random.Random(4)
    driver = Driver(policy(min_prefix_tokens=400))
    for n in range(20):
        driver.serve(f"r{n}", ids_of(SYSTEM[:200] + "\nuser: " + words(rng, 60)), session=f"chat{n}")
    return driver


def rolling_context() -> Driver:
    """Only the last four messages are sent."""
    return chats(Driver(policy()), lambda c, n: ids_of(SYSTEM[:150] + "".join(c.messages[-5:])), sessions=3, turns=9)


def history_rewritten() -> Driver:
    """The client capitalises the answers in its history."""

    def rewrite(chat: Chat, number: int) -> list[int]:
        told = [m.title() if at % 2 else m for at, m in enumerate(chat.messages)]
        return ids_of(SYSTEM + "".join(told))

    return chats(Driver(policy()), rewrite)


def history_trimmed() -> Driver:
    """The client cuts the beginning of each answer away (a reasoning block, say)."""

    def trim(chat: Chat, number: int) -> list[int]:
        return ids_of(SYSTEM + "".join(m[30:] if at % 2 else m for at, m in enumerate(chat.messages)))

    return chats(Driver(policy()), trim)


def media_changes() -> Driver:
    """The same picture in other bytes each time."""
    driver = Driver(policy())
    return chats(
        driver, namespace=lambda c, n: driver.open("model", media=blake3(str(n).encode()).digest()), sessions=3, turns=4
    )  # fmt: skip


def capacity_evicts() -> Driver:
    """Room for two of five conversations."""
    return chats(Driver(policy(capacity_bytes=100 * 3200)))


def entries_evict() -> Driver:
    """Three entries for five conversations."""
    return chats(Driver(policy(max_entries=3)))


def ttl_evicts() -> Driver:
    """A turn comes after 150 s, entries live for 100 s."""
    return chats(Driver(policy(ttl_us=100_000_000)), pause_s=30.0)


PLANTED: dict[str, tuple[str, Callable[[], Driver]]] = {
    "a BOS twice": ("doubled_bos", doubled_bos),
    "a trailing space": ("trailing_whitespace", trailing_whitespace),
    "a timestamp": ("changing_value", timestamp),
    "a request id": ("changing_value", request_id),
    "a name": ("changing_value", user_name),
    "tools in another order": ("template_drift", template_drift),
    "session keys": ("session_keys_change", session_keys_change),
    "a short prefix": ("under_min_prefix", under_min_prefix),
    "a rolling context": ("rolling_context", rolling_context),
    "answers rewritten": ("history_rewritten", history_rewritten),
    "answers trimmed": ("history_rewritten", history_trimmed),
    "other media": ("media_changes", media_changes),
    "little capacity": ("capacity_evicts", capacity_evicts),
    "few entries": ("entries_evict", entries_evict),
    "a short life": ("ttl_evicts", ttl_evicts),
}
