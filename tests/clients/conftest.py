"""One daemon a session over a tiny model whose template knows thinking and tools; tests may force what it says."""

import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import pytest

from mlxcel.chat.tokenizer import Tokenizer
from tests.e2e.daemon import Daemon
from tests.tinymodels import write_tiny_model

# The shape of Qwen's templates: tools in the system message, thinking and calls between marks, results as user text.
TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}
{{- messages[0].content }}{% endif %}{{ '\\n# Tools\\n' }}{% for tool in tools %}{{ tool | tojson }}
{{- '\\n' }}{% endfor %}{{ 'Use <tool_call>{...}</tool_call>.' }}
{{- '<|im_end|>\\n' }}{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}{% for message in messages %}{% if message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content or '' }}{% for call in message.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + call.function.name }}
{{- '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' }}
{{- message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""


class Forcing(Daemon):
    """A daemon that can be told its answer."""

    def __init__(self, model: Path, data_dir: Path, *flags: str) -> None:
        super().__init__(model, data_dir, *flags, env={"MLXCEL_TEST_FORCED_TOKENS": "1"})
        self.tokenizer = Tokenizer(model)
        self.anthropic = anthropic.Anthropic(base_url=self.url, api_key="none", timeout=600, max_retries=0)

    def saying(self, text: str) -> dict[str, str]:
        """Return the header that makes the next answer `text` and its end."""
        ids = [*self.tokenizer.encode_rendered(text), min(self.tokenizer.eos_ids)]
        return {"x-mlxcel-test-forced-tokens": ",".join(map(str, ids))}


def talking_model(directory: Path, kind: str = "llama") -> Path:
    """Write a tiny model whose template knows thinking and tools."""
    model = write_tiny_model(kind, directory)
    path = model / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return model


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model."""
    return talking_model(tmp_path_factory.mktemp("talker") / "talker")


@pytest.fixture(scope="module")
def daemon(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forcing]:
    """A daemon for the tests of one module."""
    with Forcing(talker, tmp_path_factory.mktemp("clients") / "data") as running:
        yield running
        running.anthropic.close()
