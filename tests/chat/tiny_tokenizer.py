"""A small byte-level BPE tokenizer and model directory, trained on the spot: no download, the same every time."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
VISIBLE = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
WORDS = (
    "the quick brown fox jumps over the lazy dog while many small tokens are merged into words for a test of streams "
    "alpha beta gamma delta epsilon system user assistant tool hello world weather city name arguments answer "
) * 20

CHATML = (
    "{%- if tools %}<|im_start|>system\nTools:\n{%- for tool in tools %}\n{{ tool | tojson }}{%- endfor %}"
    '\nCall with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n{%- endif %}'
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content %}{{ message.content }}{% endif %}"
    "{%- for call in message.tool_calls or [] %}"
    '{{- \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer(with_bos: bool = False) -> Tokenizer:
    """Train a 600-token byte-level BPE with ChatML tokens. `with_bos`: encoding with specials puts <s> first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in VISIBLE])
    if with_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def write_model_directory(
    directory: Path, template: str | None = CHATML, with_bos: bool = False, bos_in_config: bool | None = None
) -> Path:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and config.json; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(with_bos)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    extra = {} if bos_in_config is None else {"add_bos_token": bos_in_config}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({**config, **extra, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (directory / "config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id("<|im_end|>")}))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory
