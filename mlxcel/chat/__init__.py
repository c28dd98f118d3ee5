"""From messages to tokens and from tokens to answers: tokenizer, templates, signatures, parsers. No MLX, no HTTP."""
