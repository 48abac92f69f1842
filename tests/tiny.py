"""A model file of half a megabyte, for the tests that need a real runtime.

Two layers of random f32 weights, from a seed: its answers mean nothing, but they are
the same on every machine up to rounding, depend on the whole history, and lie far
enough apart that rounding does not change an argmax by chance. Half of the vocabulary
spells any bytes; the other half are pieces of the words that the tests choose from.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gguf
import numpy as np

__all__ = ["CHAT_TEMPLATE", "CONTROL", "WORDS", "tiny_gguf"]

#: Control tokens, ids 0, 1, 2. The first is BOS, the last two end a generation.
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

#: Each beginning of these words is a piece of the vocabulary.
WORDS = (
    *("Yes", "No", "Maybe", "REPLY", "IGNORE", "NONE", "SEND", "SEARCH", "MUTE"),
    *("UNMUTE", "FOLLOW", "ROOM", "EMAIL", "MESSAGE", "FILES", "WEB", "_WEB", "true"),
    *("false", "null", " the", " a", " an", " user", " of", " to", "assistant", "user"),
    *("system", "action", '":', ' "', '"}', "\n\n", "e\u0301", "\U0001f408"),
)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_LAYER = 64, 2, 1, 128, 2
N_CONV, N_STATE, N_RANK = 4, 8, 4


def tiny_gguf(
    path: Path,
    *,
    kind: str = "bpe",
    arch: str = "llama",
    seed: int = 0,
    n_ctx_train: int = 8192,
    tied: bool = False,
    rope_theta: float | None = None,
) -> Path:
    """Write the model and return its path.

    Parameters
    ----------
    path : Path
        Where to write; its folder must exist.
    kind : {"bpe", "spm", "spm without bytes"}
        Byte-level BPE, as in GPT-2; or SentencePiece with byte fallback, as in Llama 2,
        which writes a space in front of each text.
    arch : {"llama", "mamba"}
        With attention; or recurrent, with a state that cannot be cut back.
    seed : int
        Other seeds give other weights for the same vocabulary.
    n_ctx_train : int
        The context length that the file claims.
    tied : bool
        Whether one tensor is embedding and head.
    rope_theta : float, optional
        The base of the rotation; by default the file does not say, which is 10,000.
    """
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"tiny-{arch}-{kind}-{seed}")
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_layer_norm_rms_eps(1e-5)
    if rope_theta is not None:
        writer.add_rope_freq_base(rope_theta)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    n_vocab = _VOCABULARIES[kind](writer)
    writer.add_vocab_size(n_vocab)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    weights = _Weights(writer, seed)
    scale = 2.0 if tied else np.sqrt(N_EMBD)
    weights.matrix("token_embd", n_vocab, N_EMBD, scale=scale)
    {"llama": _add_attention, "mamba": _add_recurrence}[arch](writer, weights)
    weights.ones("output_norm.weight", N_EMBD)
    if not tied:
        weights.matrix("output", n_vocab, N_EMBD, scale=2.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _beginnings(words: list[str]) -> list[str]:
    """Return the beginnings of two and more characters, each once, short ones first."""
    found = {word[:n] for word in words for n in range(2, len(word) + 1)}
    return sorted(found, key=lambda piece: (len(piece), piece))


def _byte_letters() -> dict[int, str]:
    """Return the printable letter that byte-level BPE writes for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain}
    letters.update({b: chr(0x100 + i) for i, b in enumerate(others)})
    return letters


def _add_bpe(writer: gguf.GGUFWriter) -> int:
    letter = _byte_letters()
    words = ["".join(letter[b] for b in word.encode()) for word in WORDS]
    pieces = _beginnings(words)
    tokens = [*CONTROL, *(letter[b] for b in range(256)), *pieces]
    control = [gguf.TokenType.CONTROL] * len(CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        control + [gguf.TokenType.NORMAL] * (len(tokens) - len(control))
    )
    writer.add_token_merges([f"{piece[:-1]} {piece[-1]}" for piece in pieces])
    writer.add_add_bos_token(False)
    return len(tokens)


def _add_spm(writer: gguf.GGUFWriter, n_bytes: int = 256) -> int:
    words = [word.replace(" ", "\u2581") for word in WORDS]
    letters = sorted({c for word in words for c in word} | {"\u2581"})
    pieces = [*_beginnings(words)[::-1], *letters]
    unknown, bytes_ = "<unk>", [f"<0x{b:02X}>" for b in range(n_bytes)]
    tokens = [*CONTROL, unknown, *bytes_, *pieces]
    kinds = (
        [gguf.TokenType.CONTROL] * len(CONTROL)
        + [gguf.TokenType.UNKNOWN]
        + [gguf.TokenType.BYTE] * n_bytes
        + [gguf.TokenType.NORMAL] * len(pieces)
    )
    first = len(tokens) - len(pieces)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    # Longer pieces first: a higher score is merged earlier.
    writer.add_token_scores([float(min(0, first - i)) for i in range(len(tokens))])
    writer.add_unk_token_id(len(CONTROL))
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    return len(tokens)


_VOCABULARIES = {
    "bpe": _add_bpe,
    "spm": _add_spm,
    "spm without bytes": partial(_add_spm, n_bytes=0),
}


class _Weights:
    """Random tensors from one generator."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self.add = writer.add_tensor
        self.rng = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        values = self.rng.standard_normal((rows, columns)) * (scale / np.sqrt(columns))
        self.add(f"{name}.weight", values.astype(np.float32))

    def ones(self, name: str, *shape: int, scale: float = 1.0) -> None:
        self.add(name, np.full(shape, scale, np.float32))


def _add_attention(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    n_kv = N_EMBD // N_HEAD * N_HEAD_KV
    for i in range(N_LAYER):
        weights.ones(f"blk.{i}.attn_norm.weight", N_EMBD)
        weights.matrix(f"blk.{i}.attn_q", N_EMBD, N_EMBD, scale=2.0)
        weights.matrix(f"blk.{i}.attn_k", n_kv, N_EMBD, scale=2.0)
        weights.matrix(f"blk.{i}.attn_v", n_kv, N_EMBD)
        weights.matrix(f"blk.{i}.attn_output", N_EMBD, N_EMBD)
        weights.ones(f"blk.{i}.ffn_norm.weight", N_EMBD)
        weights.matrix(f"blk.{i}.ffn_gate", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_up", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_down", N_EMBD, N_FF)


def _add_recurrence(writer: gguf.GGUFWriter, weights: _Weights) -> None:
    inner = 2 * N_EMBD
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(N_CONV)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(N_RANK)
    for i in range(N_LAYER):
        weights.ones(f"blk.{i}.attn_norm.weight", N_EMBD)
        weights.matrix(f"blk.{i}.ssm_in", 2 * inner, N_EMBD)
        weights.matrix(f"blk.{i}.ssm_conv1d", inner, N_CONV)
        weights.ones(f"blk.{i}.ssm_conv1d.bias", inner, scale=0.0)
        weights.matrix(f"blk.{i}.ssm_x", N_RANK + 2 * N_STATE, inner)
        weights.matrix(f"blk.{i}.ssm_dt", inner, N_RANK)
        weights.ones(f"blk.{i}.ssm_dt.bias", inner, scale=0.0)
        weights.ones(f"blk.{i}.ssm_a", inner, N_STATE, scale=-0.5)
        weights.ones(f"blk.{i}.ssm_d", inner)
        weights.matrix(f"blk.{i}.ssm_out", N_EMBD, inner)
