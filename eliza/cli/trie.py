"""`eliza trie`: a set of choices, drawn as the tree that it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from eliza import rtkt
from eliza._trie import Trie
from eliza.cli.loading import load_model
from eliza.cli.tree import Spell, Tree, as_dot, as_text, counted, plain, tree_of
from eliza.errors import BundleError, InvalidArgument
from eliza.payload import TokenTreePayload

if TYPE_CHECKING:
    import argparse

    from eliza.vocab import Vocab

__all__ = ["add_parser"]

_TRIE_MAGIC = b"elizaTRI"  # as in `_image.pxd`


def add_parser(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "trie",
        help="draw a set of choices as a tree",
        description="Draw a token tree payload (JSON or RTKT) or a saved trie: where "
        "choices part, and which ids are forced in between (in parentheses).",
    )
    parser.add_argument("file", metavar="FILE", help="what to draw; - for stdin")
    parser.add_argument(
        "--path",
        metavar="PATH",
        help="which descriptor of a payload to draw; by default all",
    )
    parser.add_argument(
        "--n-vocab",
        type=int,
        metavar="N",
        help="size of the vocabulary, for a payload; by default the model's, else the "
        "largest id + 1",
    )
    parser.add_argument(
        "--model", metavar="PATH", help="show the texts of ids, by this model"
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


@dataclass(frozen=True)
class _Content:
    """What a file holds: a trie per path, or one trie without a path."""

    paths: tuple[str | None, ...]
    tries: tuple[Trie, ...]
    n_vocab: str
    """Where the size of the vocabulary comes from."""
    model_id: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Carry the verb out; return the exit code."""
    name = arguments.file
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    if arguments.model is None:
        print(_shown(arguments, data, None), flush=True)
    else:
        with load_model(arguments.model, arguments) as model:
            print(_shown(arguments, data, model.vocab), flush=True)
    return 0


def _shown(arguments: argparse.Namespace, data: bytes, vocab: Vocab | None) -> str:
    is_trie = data.startswith(_TRIE_MAGIC)
    content = (_of_trie if is_trie else _of_payload)(arguments, data, vocab)
    trees = [tree_of(trie) for trie in content.tries]
    if arguments.json:
        return _as_json(content, trees, vocab)
    if arguments.dot:
        titles = ["trie" if path is None else path for path in content.paths]
        return as_dot(trees, titles, _speller(vocab))
    return _as_text(content, trees, vocab)


def _of_trie(
    arguments: argparse.Namespace, data: bytes, vocab: Vocab | None
) -> _Content:
    if arguments.path is not None or arguments.n_vocab is not None:
        raise InvalidArgument(
            f"{arguments.file} is a saved trie, which has one set of choices and a "
            "size of vocabulary of its own: leave out --path and --n-vocab"
        )
    try:
        trie = Trie.from_bytes(data)
    except BundleError as error:
        raise BundleError(f"{arguments.file}: {error}") from None
    if vocab is not None and trie.fingerprint not in (b"", vocab.fingerprint):
        raise InvalidArgument(
            f"{arguments.file} was made by another tokenizer than that of "
            f"{arguments.model}: the texts of its ids would be wrong"
        )
    return _Content((None,), (trie,), "the trie's own")


def _of_payload(
    arguments: argparse.Namespace, data: bytes, vocab: Vocab | None
) -> _Content:
    try:
        if data.startswith(rtkt.MAGIC):
            payload = TokenTreePayload.from_rtkt(data)
        else:
            payload = TokenTreePayload.from_json(data)
    except InvalidArgument as error:
        raise BundleError(f"{arguments.file}: {error}") from None
    paths = payload.paths
    if arguments.path is not None:
        payload.leaves(arguments.path)  # is there such a path?
        paths = (arguments.path,)
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
    return _Content(paths, tuple(tries), origin, payload.model_id)


def _as_text(content: _Content, trees: Sequence[Tree], vocab: Vocab | None) -> str:
    encoding = sys.stdout.encoding or "ascii"
    ascii_only = not _can_write("├─└│…", encoding)
    spell = _speller(vocab)
    parts = []
    for path, tree in zip(content.paths, trees, strict=True):
        parts.append(_summary(content, path, tree))
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


def _summary(content: _Content, path: str | None, tree: Tree) -> str:
    trie = tree.trie
    title = "" if path is None else f"{plain(path)}: "
    model = f" for model {plain(content.model_id)}" if content.model_id else ""
    ends = "; some go on where others end" if trie.needs_exits else ""
    return (
        f"{title}{counted(len(trie), 'choice')}{model}{ends}\n"
        f"{counted(tree.n_tokens, 'token')}, {trie.max_depth:,} in the longest choice; "
        f"{tree.forced_share:.1%} are forced\n"
        f"{counted(trie.n_nodes, 'node')}, "
        f"{counted(tree.n_branching, 'branching point')}; {trie.nbytes:,} bytes\n"
        f"ids lie below {trie.n_vocab:,} ({content.n_vocab})"
    )


def _as_json(content: _Content, trees: Sequence[Tree], vocab: Vocab | None) -> str:
    out = []
    for path, tree in zip(content.paths, trees, strict=True):
        trie = tree.trie
        number = {id(node): i for i, node in enumerate(tree.nodes)}
        nodes = []
        for node in tree.nodes:
            entry: dict[str, Any] = {"ids": node.ids}
            if vocab is not None:
                entry["text"] = _text(vocab, node.ids)
            entry["choices"] = node.n_leaves
            if node.leaf is not None:
                entry["leaf"] = node.leaf
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
    return msgspec.json.encode({"model_id": content.model_id, "trees": out}).decode()
