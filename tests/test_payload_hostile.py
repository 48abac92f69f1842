"""Payloads damaged in every way: an error of ours or a sound payload, never more.

What is read must be what plain Python reads (`payloads.json_model`, `rtkt_model`), and
what it refuses must be refused.
"""

from __future__ import annotations

import json
import random
import resource
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import TokenTreePayload
from eliza.errors import InvalidArgument
from payloads import (
    JSON_SEEDS,
    damaged_json,
    damaged_rtkt,
    json_model,
    rtkt_model,
)


def refused(data, expected, error):
    assert expected is None, data
    assert 0 < len(str(error)) < 400, data


def check_json(data):
    expected = json_model(data)
    try:
        payload = TokenTreePayload.from_json(data)
    except InvalidArgument as error:
        refused(data, expected, error)
        return False
    got = payload.model_id, [(path, payload.leaves(path)) for path in payload.paths]
    assert got == expected, data
    written = payload.to_json()
    assert TokenTreePayload.from_json(written).to_json() == written, data
    return True


def check_rtkt(data):
    expected = rtkt_model(data)
    try:
        payload = TokenTreePayload.from_rtkt(data)
    except InvalidArgument as error:
        refused(data, expected, error)
        return False
    assert expected == (payload.paths[0], [ids for _, ids in payload.leaves()]), data
    assert TokenTreePayload.from_rtkt(payload.to_rtkt()) == payload, data
    return True


def run_many(n, seed):
    """Check n texts and n trees; return the shares that were read."""
    rng = random.Random(seed)
    read = [0, 0]
    for _ in range(n):
        read[0] += check_json(damaged_json(rng))
        read[1] += check_rtkt(damaged_rtkt(rng))
    return read[0] / n, read[1] / n


def test_the_originals_are_read():
    assert all(map(check_json, JSON_SEEDS))


def test_damaged_payloads():
    for share in run_many(5_000, seed=1):
        assert 0.01 < share < 0.6  # else the damage is too great or too small


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform == "win32", reason="asks for the memory used")
def test_a_million_damaged_payloads():
    run_many(1_000, seed=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_many(500_000, seed=3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB


@given(st.binary(max_size=80))
def test_any_bytes(data):
    check_json(data)
    check_rtkt(data)
    check_rtkt(b"RTKT\1\0\0\0" + data)


scraps = st.sampled_from(
    [
        *'{}[],:"\\ -0159.eéntf',
        *("\\u", "\\ud800", "true", "null", "NaN", "\x00", '"modelId":', '"path":'),
        *('"descriptors":', '"leaves":', '"name":', '"tokens":'),
    ]
)


@given(st.lists(scraps, max_size=30).map("".join))
def test_any_scraps_of_json(text):
    check_json(text.encode("utf-8", "surrogatepass"))
    for seed in JSON_SEEDS:
        check_json(seed.replace(b"[", b"[" + text.encode(), 1))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**64) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=200)
@given(values, st.integers(0, 200), st.sampled_from(JSON_SEEDS))
def test_any_value_anywhere(value, at, seed):
    places = [i for i, byte in enumerate(seed) if byte in b"[{:,"]
    at = places[at % len(places)] + 1
    text = json.dumps(value).encode()
    check_json(seed[:at] + text + seed[at:])
    check_json(seed[:at] + text + b"," + seed[at:])
    check_json(seed[:at] + b'"x":' + text + b"," + seed[at:])
