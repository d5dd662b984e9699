"""Build the tiny Llama that the real vLLM serves in the tests.

Its weights are random, so its text is noise; its token counts, cache hits, queueing and aborts are
real. Run it with the Python of the vLLM environment, which has torch, transformers and tokenizers:

    .venv-vllm/bin/python tests/engines/tiny_model.py .cache/tiny-model

The end of the text and blanks are silenced: the model doesn't choose them at any temperature unless
it is made to. So an answer has exactly `max_tokens` tokens unless the request stops or biases it,
and JSON that the model is forced to write isn't padded with blanks until the tokens run out.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, logging

#: Written last; holds a checksum of what it is made of, so that an older model is built anew.
MARKER = "complete"
SEED = 20240229
VOCABULARY_SIZE = 4096
MAX_POSITIONS = 4096
BEGIN, END = "<|begin|>", "<|end|>"
BEGIN_ID, END_ID = 0, 1

#: Byte pairs in the order in which they are joined, as they were learnt of English and Python. They
#: are kept: with others the model's noise would be another, and what a test sees of it too.
MERGES = Path(__file__).with_name("merges.txt")

#: Any role is accepted and printed; content may be a string or a list of parts with text in them.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}{{ part['text'] if part['text'] is defined else '' }}"
    "{% endfor %}{% endif %}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def build(directory: Path) -> None:
    """Build model and tokenizer into `directory`, unless this very script has done so before."""
    if _is_complete(directory):
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        tokenizer = _make_tokenizer()
        _save_tokenizer(tokenizer, staging)
        _save_model(staging, silenced=_silent_tokens(tokenizer))
        (staging / MARKER).write_text(_recipe())
        staging.chmod(0o755)
        _install(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _is_complete(directory: Path) -> bool:
    try:
        return (directory / MARKER).read_text() == _recipe()
    except FileNotFoundError:
        return False


def _recipe() -> str:
    return hashlib.sha256(Path(__file__).read_bytes() + MERGES.read_bytes()).hexdigest()


def _install(staging: Path, directory: Path) -> None:
    """Rename the finished model into place; a builder that was faster wins."""
    if directory.exists() and not _is_complete(directory):
        shutil.rmtree(directory)
    try:
        staging.rename(directory)
    except OSError:
        if not _is_complete(directory):
            raise


def _make_tokenizer() -> Tokenizer:
    pairs = [line.split(" ") for line in MERGES.read_text(encoding="utf-8").splitlines()]
    merges = [(left, right) for left, right in pairs]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [BEGIN, END, *alphabet, *(left + right for left, right in merges)]
    if len(tokens) != VOCABULARY_SIZE:
        raise ValueError(f"{len(tokens)} tokens, of {VOCABULARY_SIZE}")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BEGIN, END])
    return tokenizer


def _silent_tokens(tokenizer: Tokenizer) -> list[int]:
    texts = ((token, tokenizer.decode([token])) for token in range(VOCABULARY_SIZE))
    return [BEGIN_ID, END_ID, *(token for token, text in texts if text.isspace())]


def _save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(directory)


def _save_model(directory: Path, *, silenced: list[int]) -> None:
    logging.disable_progress_bar()
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=MAX_POSITIONS,
            bos_token_id=BEGIN_ID,
            eos_token_id=END_ID,
            tie_word_embeddings=False,
            # Wide enough for the context, not only the last token, to decide the next one.
            initializer_range=0.06,
        )
    )
    with torch.no_grad():
        # One dimension that all tokens share, no layer changes and only the silenced tokens read:
        # a bias, which Llama's output layer hasn't got.
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[silenced, 0] = -60.0
    model.to(torch.bfloat16).save_pretrained(directory)


def main(arguments: list[str]) -> int:
    """Command line: one argument, the directory to build into."""
    if len(arguments) != 1:
        print("usage: tiny_model.py DIRECTORY", file=sys.stderr)
        return 2
    build(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
