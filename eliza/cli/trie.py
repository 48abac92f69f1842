"""`eliza trie`: a set of choices, drawn as the tree that it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from eliza import rtkt
from eliza.cli.loading import load_model
from eliza.cli.tree import Spell, Tree, as_dot, as_text, plain, tree_of
from eliza.errors import BundleError, InvalidArgument
from eliza.payload import TokenTreePayload

if TYPE_CHECKING:
    import argparse

    from eliza.vocab import Vocab

__all__ = ["add_parser"]


def add_parser(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "trie",
        help="draw a set of choices as a tree",
        description="Draw a token tree payload, JSON or RTKT, as a tree: where choices "
        "part, and which ids are forced in between (in parentheses).",
    )
    parser.add_argument("file", metavar="FILE", help="the payload; - for stdin")
    parser.add_argument(
        "--path", metavar="PATH", help="which descriptor to draw; by default all"
    )
    parser.add_argument(
        "--n-vocab",
        type=int,
        metavar="N",
        help="size of the vocabulary; by default the model's, else the largest id + 1",
    )
    parser.add_argument(
        "--model", metavar="GGUF", help="show the texts of ids, by this model's file"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print counts and all nodes as JSON"
    )
    form.add_argument(
        "--dot", action="store_true", help="print a graph for Graphviz instead"
    )
    # The context that a model is loaded with; only its vocabulary is used.
    parser.set_defaults(run=run, n_ctx=32, threads=1)


def run(arguments: argparse.Namespace) -> int:
    """Carry the verb out; return the exit code."""
    payload = _read(arguments.file)
    if arguments.path is None:
        paths = payload.paths
    else:
        payload.leaves(arguments.path)  # is there such a path?
        paths = (arguments.path,)
    if arguments.model is None:
        _print(arguments, payload, paths, None)
    else:
        with load_model(arguments.model, arguments) as model:
            _print(arguments, payload, paths, model.vocab)
    return 0


def _read(name: str) -> TokenTreePayload:
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        if data.startswith(rtkt.MAGIC):
            return TokenTreePayload.from_rtkt(data)
        return TokenTreePayload.from_json(data)
    except InvalidArgument as error:
        raise BundleError(f"{name}: {error}") from None


def _print(
    arguments: argparse.Namespace,
    payload: TokenTreePayload,
    paths: Sequence[str],
    vocab: Vocab | None,
) -> None:
    least = 1 + max(max(ids) for path in paths for _, ids in payload.leaves(path))
    n_vocab, origin = least, "the largest id + 1"
    try:
        tries = [payload.trie(path, n_vocab=n_vocab) for path in paths]
    except InvalidArgument as error:  # whatever the vocabulary
        raise BundleError(f"{arguments.file}: {error}") from None
    if arguments.n_vocab is not None:
        n_vocab, origin = arguments.n_vocab, "--n-vocab"
    elif vocab is not None:
        n_vocab, origin = vocab.n_vocab, "the model's vocabulary"
    if n_vocab != least:
        tries = [payload.trie(path, n_vocab=n_vocab) for path in paths]
    trees = [tree_of(trie) for trie in tries]
    if arguments.json:
        out = _as_json(payload, paths, trees, vocab)
    elif arguments.dot:
        out = as_dot(trees, paths, _speller(vocab))
    else:
        out = _as_text(payload, paths, trees, vocab, f"{n_vocab:,} ({origin})")
    print(out, flush=True)


def _as_text(
    payload: TokenTreePayload,
    paths: Sequence[str],
    trees: Sequence[Tree],
    vocab: Vocab | None,
    n_vocab: str,
) -> str:
    encoding = sys.stdout.encoding or "ascii"
    ascii_only = not _can_write("├─└│…", encoding)
    spell = _speller(vocab)
    parts = []
    for path, tree in zip(paths, trees, strict=True):
        parts.append(_summary(payload, path, tree, n_vocab))
        parts.append(as_text(tree, spell, ascii_only=ascii_only))
    # A terminal that cannot write all names shows them by their escapes.
    text = "\n\n".join(parts)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _can_write(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _speller(vocab: Vocab | None) -> Spell:
    if vocab is None:
        return lambda ids: " ".join(map(str, ids))
    return lambda ids: " ".join([repr(_text(vocab, [token])) for token in ids])


def _text(vocab: Vocab, ids: Sequence[int]) -> str:
    pieces = b"".join([vocab.piece(token) for token in ids])
    return pieces.decode("utf-8", "backslashreplace")


def _summary(payload: TokenTreePayload, path: str, tree: Tree, n_vocab: str) -> str:
    trie = tree.trie
    model = f", made for model {plain(payload.model_id)}" if payload.model_id else ""
    ends = " (exit ids needed: some choices go on)" if trie.needs_exits else ""
    return (
        f"{plain(path)}{model}: {len(trie):,} choices{ends}\n"
        f"{tree.n_tokens:,} tokens, the longest choice has {trie.max_depth:,}; "
        f"{tree.forced_share:.1%} are forced\n"
        f"{trie.n_nodes:,} nodes, {tree.n_branching:,} of them branching points; "
        f"{trie.nbytes:,} bytes\n"
        f"ids lie below {n_vocab}"
    )


def _as_json(
    payload: TokenTreePayload,
    paths: Sequence[str],
    trees: Sequence[Tree],
    vocab: Vocab | None,
) -> str:
    out = []
    for path, tree in zip(paths, trees, strict=True):
        trie = tree.trie
        number = {id(node): i for i, node in enumerate(tree.nodes)}
        nodes = []
        for node in tree.nodes:
            entry: dict[str, Any] = {"ids": node.ids}
            if vocab is not None:
                entry["text"] = _text(vocab, node.ids)
            entry["choices"] = node.n_leaves
            if node.leaf is not None:
                entry["name"] = trie.name(node.leaf)
            entry["children"] = [number[id(child)] for child in node.children]
            nodes.append(entry)
        out.append(
            {
                "path": path,
                "n_vocab": trie.n_vocab,
                "choices": len(trie),
                "tokens": tree.n_tokens,
                "longest": trie.max_depth,
                "forced_share": tree.forced_share,
                "branching_points": tree.n_branching,
                "needs_exits": trie.needs_exits,
                "bytes": trie.nbytes,
                "nodes": nodes,
            }
        )
    return msgspec.json.encode({"model_id": payload.model_id, "trees": out}).decode()
