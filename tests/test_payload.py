"""Token tree payloads as JSON: what is read, refused, written and built."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eliza import TokenTreeDescriptor, TokenTreeLeaf, TokenTreePayload, Trie
from eliza.errors import InvalidArgument, InvalidType
from payloads import GOOD, TOP, documents, json_model, payload_of

read = TokenTreePayload.from_json

LEAF = "descriptors[0].leaves[0]"


def changed(old, new):
    assert GOOD.count(old) >= 1
    return GOOD.replace(old, new, 1)


def refused(data, message, kind=InvalidArgument):
    with pytest.raises(InvalidArgument) as raised:
        read(data)
    assert message in str(raised.value)
    assert type(raised.value) is kind


# What is read


def test_a_payload():
    payload = read(GOOD)
    assert payload.model_id == "m"
    assert payload.paths == ("action",)
    assert payload.leaves() == [("THINK", (100, 101)), ("EXECUTE", (200,))]
    assert payload.descriptors == (
        TokenTreeDescriptor(
            "action",
            (TokenTreeLeaf("THINK", (100, 101)), TokenTreeLeaf("EXECUTE", (200,))),
        ),
    )
    assert payload == payload_of({"THINK": [100, 101], "EXECUTE": [200]})
    assert hash(payload) == hash(read(GOOD.encode()))
    assert payload != read(changed('"m"', '"n"'))
    assert payload != GOOD
    assert repr(payload) == "<TokenTreePayload of model 'm', leaves: action: 2>"


@pytest.mark.parametrize("form", [str, str.encode, lambda s: bytearray(s.encode())])
def test_forms_of_the_text(form):
    assert read(form(GOOD)) == read(GOOD)


def test_fc108_only_the_given_part_is_read():
    n = len(GOOD)
    whole = memoryview(GOOD.encode() + b"x" * 1000)
    assert read(whole[:n]) == read(GOOD)
    for length in (0, n - 1, n + 1, n + 1000):
        refused(whole[:length], "not JSON")
    stepped = memoryview("".join(c + "x" for c in GOOD).encode())[::2]
    assert read(stepped) == read(GOOD)


def test_unknown_keys_are_skipped():
    text = changed('"path"', '"description":{"a":[{"b":"\\"]},{["}]},"path"')
    assert read(text[:-1] + ',"modelID":"x"}') == read(GOOD)


@pytest.mark.parametrize("data", [None, 5, ["a"], {"modelId": "m"}, np.zeros(3)])
def test_not_a_text(data):
    refused(
        data, f"JSON is given as bytes or str, got {type(data).__name__}", InvalidType
    )


@given(documents, st.text(st.characters(codec="utf-8")), st.booleans())
def test_agrees_with_the_model(document, model_id, escaped):
    data = json.dumps(
        {
            "modelId": model_id,
            "descriptors": [
                {
                    "path": path,
                    "leaves": [{"name": n, "tokens": t} for n, t in leaves.items()],
                }
                for path, leaves in document.items()
            ],
        },
        ensure_ascii=escaped,
    ).encode()
    payload = read(data)
    assert json_model(data) == (
        payload.model_id,
        [(path, payload.leaves(path)) for path in payload.paths],
    )
    written = payload.to_json()
    again = read(written)
    assert again.to_json() == written
    assert again.paths == payload.paths
    assert again.model_id == model_id
    for path, leaves in document.items():
        assert again.leaves(path) == sorted((n, tuple(t)) for n, t in leaves.items())


# What is written


def test_written_json_is_canonical():
    leaves = [
        ("b", (2,)),
        ("é", (4,)),
        ("Z", (3,)),
        ("a", (1, 5)),
        ("\U0001f408", (6,)),
    ]
    leaves.append(("\ufb01", (7,)))  # above the cat in UTF-16, below it here
    texts = set()
    for order in (leaves, leaves[::-1], leaves + leaves[:2]):
        made = tuple(TokenTreeLeaf(*leaf) for leaf in order)
        other = TokenTreeDescriptor("a", (TokenTreeLeaf("x", (0,)),))
        payload = TokenTreePayload("m", [TokenTreeDescriptor("z", made), other])
        texts.add(payload.to_json())
    assert texts == {
        '{"modelId":"m","descriptors":[{"path":"z","leaves":['
        '{"name":"Z","tokens":[3]},{"name":"a","tokens":[1,5]},'
        '{"name":"b","tokens":[2]},{"name":"é","tokens":[4]},'
        '{"name":"\ufb01","tokens":[7]},{"name":"\U0001f408","tokens":[6]}]},'
        '{"path":"a","leaves":[{"name":"x","tokens":[0]}]}]}'.encode()
    }


# What is refused


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("[200]", "[]", "descriptors[0].leaves[1].tokens: 'EXECUTE' has no ids"),
        ('"THINK"', '""', f"{LEAF}.name: it is empty"),
        ('[{"path"', '[],"x":[{"path"', "descriptors: there are none"),
        ('"leaves":[', '"leaves":[],"x":[', "descriptors[0].leaves: there are none"),
        ('"modelId":"m",', "", "the text: object missing required field modelId"),
        ('"path":"action",', "", "descriptors[0]: object missing required field path"),
        ('"name":"THINK",', "", f"{LEAF}: object missing required field name"),
        (',"tokens":[200]', "", "descriptors[0].leaves[1]: object missing required"),
    ],
)
def test_fc014_something_is_missing(old, new, where):
    refused(changed(old, new), where)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("101", "true", f"{LEAF}.tokens[1]: expected int, got bool"),
        ("101", "1.0", f"{LEAF}.tokens[1]: expected int, got float"),
        ("101", "1e2", f"{LEAF}.tokens[1]: expected int, got float"),
        ("101", '"7"', f"{LEAF}.tokens[1]: expected int, got str"),
        ("101", "null", f"{LEAF}.tokens[1]: expected int, got null"),
        ("200", "[2]", "descriptors[0].leaves[1].tokens[0]: expected int, got array"),
        ("[100,101]", "100", f"{LEAF}.tokens: expected array, got int"),
        ("[100,101]", '{"0":1}', f"{LEAF}.tokens: expected array, got object"),
        ('"THINK"', "5", f"{LEAF}.name: expected str, got int"),
        ('{"name":"THINK"', '"x",{"name":"THINK"', f"{LEAF}: expected object, got str"),
        ('"action"', "null", "descriptors[0].path: expected str, got null"),
        ('"m"', "null", "modelId: expected str, got null"),
        (GOOD, "[]", "the text: expected object, got array"),
        (GOOD, "7", "the text: expected object, got int"),
    ],
)
def test_fc035_something_has_another_type(old, new, where):
    refused(changed(old, new), where, InvalidType)


def test_faults_far_inside_are_placed():
    leaves = [{"name": f"N{i}", "tokens": [i, {"]": '["'}, [",]"]]} for i in range(9)]
    for leaf in leaves[:7]:
        leaf["tokens"] = leaf["tokens"][:1]
    good = [{"name": '"],[{', "tokens": [1, 2]}]
    document = {
        "x": [[{}]],
        "modelId": "m",
        "descriptors": [
            {"path": "a", "leaves": good},
            {"leaves": leaves, "y": ["]"], "path": "b"},
        ],
    }
    for spaced in (None, 3):
        text = json.dumps(document, indent=spaced)
        where = "descriptors[1].leaves[7].tokens[1]: expected int, got object"
        refused(text, where, InvalidType)


@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31 - 1, 2**31, 2**32 + 5, 2**40])
def test_fc035_ids_that_no_vocabulary_has(bad):
    refused(
        changed("101", str(bad)), f"{LEAF}.tokens[1]: id {bad} is outside [0, {TOP})"
    )


@pytest.mark.parametrize("digits", [19, 20, 30, 300, 5_000, 1_000_000])
def test_fc035_huge_numbers(digits):
    for bad in ("9" * digits, "-" + "9" * digits):
        with pytest.raises(InvalidArgument, match=r"\.tokens\[1\]: ") as raised:
            read(changed("101", bad))
        assert str(raised.value).startswith(LEAF)
        assert len(str(raised.value)) < 120


def test_fc035_the_highest_id_is_read():
    assert read(changed("101", str(TOP - 1))).leaves()[0] == ("THINK", (100, TOP - 1))


# Depth


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        changed('"path"', '"x":' + "[" * 100_000 + "]" * 100_000 + ',"path"'),
        changed('"path"', '"x":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + ',"path"'),
        changed('"path"', '"x":' + "[" * 62 + "]" * 62 + ',"path"'),
        changed("200", "[" * 100_000 + "]" * 100_000),
    ],
)
def test_fc104_deep_nesting(text):
    refused(text, "nested deeper than 64 levels")


def test_fc104_what_looks_deep_is_not():
    for inside in ("[" * 99, '\\"' * 99 + "[{" * 99, "\\\\"):
        text = changed('"path"', f'"x":"{inside}","{inside}":[],"path"')
        assert read(text) == read(GOOD)
    flat = "[" + "[]," * 1000 + "[]]"
    assert read(changed('"path"', f'"x":{flat},"path"')) == read(GOOD)
    most = "[" * 61 + "]" * 61
    assert read(changed('"path"', f'"x":{most},"path"')) == read(GOOD)


@pytest.mark.parametrize("before", range(-6, 7))
def test_fc104_strings_over_the_borders_of_chunks(before):
    """The survey reads 256 KB at a time: escapes, strings, keys over such a border."""
    for filler in (r"\\", r"\"", r"\\\"", "é[", ":{"):
        head = GOOD[:-1] + ',"x":"'
        padding = "a" * ((1 << 18) - len(head) + before)
        text = head + padding + filler * 3 + '","y":' + "[" * 63 + "]" * 63 + "}"
        assert read(text) == read(GOOD)
        refused(text.replace('"y":', '"y":['), "nested deeper than 64")
        twice = text.replace('"y":', '"y":1,"y":')
        refused(twice, "the key 'y' comes twice")


def test_fc104_deep_python_objects():
    nested: object = []
    for _ in range(100_000):
        nested = [nested]
    refused(nested, "got list", InvalidType)
    with pytest.raises(InvalidType, match=r"descriptors\[0\]: expected Token"):
        TokenTreePayload("m", [nested])  # type: ignore[list-item]
    leaf = TokenTreeLeaf("a", (nested,))  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"leaves\[0\].tokens\[0\]: expected int"):
        TokenTreePayload("m", [TokenTreeDescriptor("a", (leaf,))])
    del leaf
    while nested:
        nested = nested.pop()  # type: ignore[attr-defined]


SMALL_STACK = """
import sys, threading
from eliza import TokenTreePayload
from eliza.errors import InvalidArgument
texts = sys.stdin.read().split("\\n")
found = []
def run():
    for text in texts:
        try:
            found.append(TokenTreePayload.from_json(text))
        except InvalidArgument as error:
            found.append(str(error))
threading.stack_size(256 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
deep = "nested deeper than 64 levels"
assert found[:3] == [deep] * 3, found
assert found[3].model_id == "m", found
assert found[4].startswith("descriptors[0].leaves[0].tokens[1]"), found
"""


def test_fc104_a_small_stack():
    texts = [
        "[" * 100_000,
        '{"a":' * 100_000,
        changed('"path"', '"x":' + "[" * 100_000 + ',"path"'),
        changed('"path"', '"x":' + "[" * 61 + "]" * 61 + ',"path"'),
        changed("101", "{}"),
    ]
    run_python(SMALL_STACK, "\n".join(texts))


SPACES = """
import resource, sys
from eliza import TokenTreePayload
from eliza.errors import InvalidArgument
good = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, -1))
spaces = b" " * 100_000_000
for text in (spaces, spaces + good, good[:1] + spaces + good[1:], spaces.decode()):
    try:
        payload = TokenTreePayload.from_json(text)
    except InvalidArgument as error:
        assert str(error) == "not JSON: it is empty", error
        assert text.isspace()
    else:
        assert payload.model_id == "m"
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory")
def test_fc104_a_hundred_megabytes_of_spaces():
    run_python(SPACES, GOOD)


def run_python(code, text):
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Duplicate keys


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"modelId":"m"', '"modelId":"A","modelId":"B"', "the key 'modelId' comes"),
        ('"modelId":"m"', '"modelId":1,"modelId":"B"', "the key 'modelId' comes"),
        ("[200]", '[200],"tokens":[2]', "descriptors[0].leaves[1]: the key 'tokens'"),
        ("[200]", '[200],"to\\u006bens":[2]', "leaves[1]: the key 'tokens' comes"),
        ("[200]", '[200],"tokens":[true]', "leaves[1]: the key 'tokens' comes"),
        ('"name":"T', '"name":"X","name":"T', f"{LEAF}: the key 'name' comes twice"),
        ('"path"', '"x":[0,{"a":1,"a":1}],"path"', "descriptors[0].x[1]: the key 'a'"),
        ('"path"', '"a\\"":[[],{"":1,"b":[],"":1}],"path"', "[0].a\"[1]: the key ''"),
        ('"path"', '"é":1,"\\u00e9" :1,"path"', "descriptors[0]: the key 'é' comes"),
        ("}]}]}", '}]}],"descriptors":[]}', "the key 'descriptors' comes twice"),
    ],
)
def test_fc105_duplicate_keys(old, new, message):
    refused(changed(old, new), message)


def test_fc105_the_same_key_in_two_objects_is_none():
    text = changed('"path"', '"x":{"name":{"name":["name"]},"tokens":"name"},"path"')
    assert read(text) == read(GOOD)


# Escapes


def test_fc107_escapes_are_what_they_mean():
    pair = changed('"THINK"', '"\\ud83d\\ude00"')
    raw = changed('"THINK"', '"\U0001f600"')
    assert read(pair) == read(raw)
    assert read(raw).leaves()[0][0] == "\U0001f600"
    assert read(changed('"THINK"', '"\\u0000"')).leaves()[0][0] == "\0"


@pytest.mark.parametrize(
    ("one", "other"), [("\\ud83d\\ude00", "\U0001f600"), ("\\u0041", "A")]
)
def test_fc107_two_spellings_are_one_name(one, other):
    text = GOOD.replace("THINK", one).replace("EXECUTE", other)
    name = json.loads(f'"{other}"')
    with pytest.raises(InvalidArgument, match=f"leaf '{name}' is given twice"):
        read(text).trie(n_vocab=1000)
    same = text.replace("[200]", "[100,101]")
    assert read(same).trie(n_vocab=1000).names == (name,)


@pytest.mark.parametrize(
    "bad",
    ["\\ud800", "\\udc00\\ud800", "\\udc00", "\\ud800x", "\\ud800\\u0041", "\\ud83d"],
)
@pytest.mark.parametrize("at", ['"THINK"', '"action"', '"m"', '"path":'])
def test_fc107_lone_surrogates(bad, at):
    new = f'"{bad}":1,"path":' if at == '"path":' else f'"{bad}"'
    refused(changed(at, new), "(byte ")
    refused(changed(at, new.replace(bad, "\ud800")), "half a surrogate pair")


@pytest.mark.parametrize("bad", ["\\x41", "\\u12", "\\u12G4", "\\", "\t", "\n", "\0"])
def test_fc107_bad_escapes(bad):
    refused(changed("THINK", bad), "(byte ")
    refused(changed('"path"', f'"x":"{bad}","path"'), "(byte ")


@pytest.mark.parametrize(
    "bad", [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90"]
)
def test_fc107_invalid_utf8(bad):
    data = GOOD.encode()
    at = data.index(b"THINK")
    refused(data.replace(b"THINK", bad), f", byte {at})")
    refused(data.replace(b'"path"', b'"x":"' + bad + b'","path"'), "not UTF-8 text")
    refused(data.replace(b'"path"', b'"' + bad + b'":1,"path"'), "not UTF-8 text")
    refused(data + bad, "not UTF-8 text")
    refused(data + "é".encode()[:1], f"unexpected end of data, byte {len(data)})")


def test_fc107_utf8_over_the_borders_of_chunks():
    for before in range(5):
        head = GOOD[:-1] + ',"x":"'
        padding = "a" * ((1 << 18) - len(head) - before)
        text = (head + padding + '\U0001f408"}').encode()
        assert read(text) == read(GOOD)
        refused(text[:-3] + text[-2:], f"byte {len(head) + len(padding)})")


# Text around it


@pytest.mark.parametrize(
    "text",
    [
        *(GOOD + "x", GOOD + GOOD, GOOD + "\0", GOOD + "\0" + GOOD, GOOD + "]"),
        *("\ufeff" + GOOD, "\ufeff", "\0" + GOOD, "x" + GOOD, GOOD[1:], GOOD + ","),
        *("", "   ", "\n\t\r ", "\xa0", GOOD + "\xa0", GOOD + "\x0b", "// a\n" + GOOD),
    ],
)
def test_fc108_text_around_the_json(text):
    refused(text, "not JSON")
    refused(text.encode(), "not JSON")


def test_fc108_a_byte_order_mark_is_named():
    refused("\ufeff" + GOOD, "it begins with a byte order mark")
    refused(GOOD.encode("utf-16"), "not UTF-8 text")


@pytest.mark.parametrize("n", range(len(GOOD)))
def test_fc088_cut_anywhere(n):
    refused(GOOD[:n], "not JSON")


def test_fc090_a_pickle_is_no_payload(tmp_path):
    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Trap(), protocol)
        refused(data, "not JSON")
        with pytest.raises(InvalidArgument):
            TokenTreePayload.from_rtkt(data)
    assert not marker.exists()


# Made in Python


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (TokenTreeLeaf("a", [1]), "tokens: expected tuple, got list"),
        (TokenTreeLeaf("a", (True,)), r"tokens\[0\]: expected int, got bool"),
        (TokenTreeLeaf("a", (1, np.int32(1))), r"tokens\[1\]: expected int, got int32"),
        (TokenTreeLeaf("a", (1.0,)), r"tokens\[0\]: expected int, got float"),
        (TokenTreeLeaf(b"a", (1,)), "name: expected str, got bytes"),
        (("a", (1,)), r"leaves\[1\]: expected TokenTreeLeaf, got tuple"),
    ],
)
def test_fc035_made_in_python(leaf, message):
    leaves = (TokenTreeLeaf("ok", (1,)), leaf)
    with pytest.raises(InvalidType, match=message) as raised:
        TokenTreePayload("m", [TokenTreeDescriptor("a", leaves)])
    assert str(raised.value).startswith("descriptors[0].leaves[1]")


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (TokenTreeLeaf("a", ()), "tokens: 'a' has no ids"),
        (TokenTreeLeaf("", (1,)), "name: it is empty"),
        (TokenTreeLeaf("a\ud800", (1,)), "name: half a surrogate pair, at 1"),
        (TokenTreeLeaf("a", (1, -1)), r"tokens\[1\]: id -1 is outside"),
        (TokenTreeLeaf("a", (TOP,)), r"tokens\[0\]: id 2147483647 is outside"),
        (
            TokenTreeLeaf("a", (1 << 50_000,)),
            r"tokens\[0\]: an id of \d+ bits is outside",
        ),
    ],
)
def test_values_made_in_python(leaf, message):
    leaves = (TokenTreeLeaf("ok", (1,)), leaf)
    with pytest.raises(
        InvalidArgument, match=r"descriptors\[0\]\.leaves\[1\]." + message
    ):
        TokenTreePayload("m", [TokenTreeDescriptor("a", leaves)])


def test_descriptors_made_in_python():
    one = TokenTreeDescriptor("a", (TokenTreeLeaf("x", (1,)),))
    with pytest.raises(InvalidArgument, match="descriptors: there are none"):
        TokenTreePayload("m", [])
    with pytest.raises(InvalidType, match="descriptors: expected a sequence"):
        TokenTreePayload("m", 5)
    with pytest.raises(InvalidType, match="modelId: expected str, got NoneType"):
        TokenTreePayload(None, [one])
    with pytest.raises(InvalidType, match=r"descriptors\[0\]\.path: expected str"):
        TokenTreePayload("m", [TokenTreeDescriptor(1, one.leaves)])
    with pytest.raises(InvalidType, match=r"descriptors\[0\]\.leaves: expected tuple"):
        TokenTreePayload("m", [TokenTreeDescriptor("a", [*one.leaves])])
    with pytest.raises(AttributeError):
        TokenTreePayload("m", [one]).model_id = "n"


# Use


def test_the_trie_of_a_path():
    payload = read(GOOD)
    trie = payload.trie("action", n_vocab=32000)
    assert isinstance(trie, Trie)
    assert trie.names == ("THINK", "EXECUTE")
    assert payload.trie(n_vocab=201).n_vocab == 201
    exits = payload_of({"go": [1], "go on": [1, 2]}).trie(n_vocab=9, exits=[7])
    assert exits.cursor().allowed().tolist() == [1]
    assert exits.exits(0) == (7,)


def test_descriptors_are_never_merged():
    text = changed(
        "}]}]}", '}]},{"path":"contexts[]","leaves":[{"name":"x","tokens":[1]}]}]}'
    )
    payload = read(text)
    assert payload.paths == ("action", "contexts[]")
    assert payload.trie("contexts[]", n_vocab=9).names == ("x",)
    for use in (payload.trie, lambda **_: payload.leaves()):
        with pytest.raises(InvalidArgument, match=r"one of 'action', 'contexts\[\]'"):
            use(n_vocab=999)
    with pytest.raises(InvalidArgument, match="give one of 'action'"):
        payload.to_rtkt()
    message = r"no path 'contexts'; there is 'action', 'contexts\[\]'"
    for use in (payload.leaves, payload.to_rtkt, lambda p: payload.trie(p, n_vocab=9)):
        with pytest.raises(InvalidArgument, match=message):
            use("contexts")


def test_messages_stay_short():
    long = "x" * 100_000
    bad = [
        changed('"path"', f'"{long}":[{{"{long}":{{"a":1,"a":2}}}}],"path"'),
        changed('"path"', f'"{long}":1,"{long}":2,"path"'),
        changed("[200]", "[]").replace("EXECUTE", long),
    ]
    for text in bad:
        with pytest.raises(InvalidArgument) as raised:
            read(text)
        assert len(str(raised.value)) < 300
    leaves = read(GOOD).descriptors[0].leaves
    many = [TokenTreeDescriptor(f"{i}{long}", leaves) for i in range(100)]
    with pytest.raises(InvalidArgument, match="and 90 more") as raised:
        TokenTreePayload(long, many).leaves(long)
    assert len(str(raised.value)) < 900
    with pytest.raises(InvalidArgument) as raised:
        TokenTreePayload(long, many).check_model("x" + long)
    assert len(str(raised.value)) < 300


def test_two_descriptors_of_one_path():
    text = changed(
        "}]}]}", '}]},{"path":"action","leaves":[{"name":"x","tokens":[1]}]}]}'
    )
    refused(text, "descriptors[1].path: descriptors[0] has the path 'action' already")


def test_fc035_ids_outside_the_vocabulary():
    message = (
        r"descriptors\[0\] \('action'\): leaf 'EXECUTE' \[0\]: id 200 is outside \[0"
    )
    with pytest.raises(InvalidArgument, match=message):
        read(GOOD).trie(n_vocab=200)
    with pytest.raises(InvalidType, match="n_vocab must be an int"):
        read(GOOD).trie(n_vocab=200.0)


def test_fc017_two_names_for_the_same_ids():
    payload = read(changed("[200]", "[100,101]"))
    message = "leaf 'THINK' and leaf 'EXECUTE' have the same ids"
    with pytest.raises(InvalidArgument, match=message):
        payload.trie(n_vocab=999)
    with pytest.raises(InvalidArgument, match=message):
        payload.to_rtkt()


def test_check_model():
    payload = read(GOOD)
    payload.check_model("m")
    with pytest.raises(InvalidArgument, match="made for model 'm', and this is 'M'"):
        payload.check_model("M")
    with pytest.raises(InvalidType, match="model_id: expected str, got NoneType"):
        payload.check_model(None)
    read(changed('"m"', '""')).check_model("anything")


def test_imported_when_first_used():
    code = (
        "import sys, eliza\n"
        "assert 'msgspec' not in sys.modules\n"
        "assert eliza.TokenTreePayload.__module__ == 'eliza.payload'\n"
        "assert set(eliza.__all__) >= {'TokenTreePayload', 'TokenTreeLeaf'}\n"
    )
    run_python(code, "")
