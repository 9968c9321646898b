"""The codec: which texts it reads, as what, and how it writes. The tables are worked out by hand from the format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raxol_otel.errors import RaxolError, Unencodable
from raxol_otel.journal.codec import DecodeError, decode, encode
from tests import naive_reader
from tests.conftest import json_values
from tests.naive_reader import exactly

if TYPE_CHECKING:
    from tests.naive_reader import Json

DEEP = 20_000

ACCEPTED: list[tuple[bytes, Json]] = [
    (b"null", None),
    (b"true", True),
    (b"false", False),
    (b"[]", []),
    (b"{}", {}),
    (b'""', ""),
    (b" \t\r[ 1 ,\t2\r] ", [1, 2]),
    (b'{ "n" :\t[ 1 , 2 ] }', {"n": [1, 2]}),
    # integers
    (b"0", 0),
    (b"-0", 0),
    (b"-7", -7),
    (b"9007199254740993", 9007199254740993),
    (b"9223372036854775808", 2**63),
    (b"18446744073709551615", 2**64 - 1),
    (b"18446744073709551616", 2**64),
    (b"-9223372036854775809", -(2**63) - 1),
    (b"100000000000000000000", 10**20),
    # turned into a float and written back, one of these is as long as it was
    *((b"%d" % integer, integer) for integer in (int("1234567890123456789012345"[:size]) for size in range(18, 26))),
    (b"[123456789012345678901234567890]", [123456789012345678901234567890]),
    # floats
    (b"0.0", 0.0),
    (b"-0.0", -0.0),
    (b"0e5", 0.0),
    (b"1E5", 100000.0),
    (b"1e5", 100000.0),
    (b"1e+5", 100000.0),
    (b"1E-5", 0.00001),
    (b"1.50", 1.5),
    (b"1e16", 1e16),
    (b"1e-400", 0.0),
    (b"-1e-400", -0.0),
    (b"1.7976931348623157e308", 1.7976931348623157e308),
    (b"5e-324", 5e-324),
    (b"0." + b"1" * 2000, 0.1111111111111111),
    # strings
    (b'"\\b\\f\\n\\r\\t\\"\\\\\\/"', '\b\f\n\r\t"\\/'),
    (b'"a/b"', "a/b"),
    (b'"\\u0000"', "\0"),
    (b'"\\u00e9\\u00E9"', "\u00e9\u00e9"),
    (b'"\\ud83d\\ude00"', "\U0001f600"),
    (b'"\\uD83D\\uDE00\\ud83d\\ude00"', "\U0001f600\U0001f600"),
    (b'"\\uD7FF\\uE000\\uFFFF"', "\ud7ff\ue000\uffff"),
    (b'"\\\\ud800"', "\\ud800"),
    (b'"\x7f"', "\x7f"),
    ('"\u2028\u2029\u0085\ufeff"'.encode(), "\u2028\u2029\u0085\ufeff"),
    ('"e\u0301 \u00e9 \U0010ffff"'.encode(), "e\u0301 \u00e9 \U0010ffff"),
    # the first of repeated keys wins, at every depth, however the key is spelled
    (b'{"a":1,"a":2}', {"a": 1}),
    (b'{"a":1,"\\u0061":2,"b":3,"b":4}', {"a": 1, "b": 3}),
    (b'[[{"x":{"a":[1],"a":2,"b":0}}]]', [[{"x": {"a": [1], "b": 0}}]]),
    (b'{"x":{"a":1},"x":{"a":1,"b":2}}', {"x": {"a": 1}}),
    (b'{"a":null,"a":1}', {"a": None}),
]

# No item has a blank in it; those follow below.
REFUSED_WORDS = rb"""
    nul True undefined truetrue NaN Infinity -Infinity -NaN nan [NaN] {"n":-Infinity} 1e400 -1e400 1e99999999999
    01 -01 00 +1 1. .5 -.5 - --1 1e 1e+ 1.e5 0x1 1_0 [ ] { } [1 [1,] [,1] [1} {] {"a":1,} {"a"} {"a":} {1:2}
    {"a":1] {"a",1} {,} {a:1} {'a':1} 'a' {"a":1}{"a":1} {"a":1}, [1]] 1/*c*/ 1//c
    " "a "\" "\x41" "\U0041" "\a" "\'" "\0" "\v" "\ "\u" "\u12" "\u123" "\u12g4" "\u+123" "\u1_23" "\u-001"
    "\udc00" "\ud800" "\ude00\ud83d" "\ud83d\u0041" "\ud83d\ud83d\ude00" "\ud83d\n" "\ud83dx" "\ud83d\ude0"
    "\ud83d\\ude00" "\uDBFF\uE000" "\\\ud800" {"\ud800":1} {"a":1,"a":"\ud800"} {"a":1,"a":01}
""".split()
REFUSED_BYTES = [
    *(b"", b" ", b"\0", b"\0\0{}", b"{}\0", b"\x0c1", b"\x0b1", b"\xc2\xa01", b"1 2", b"- 1", b"[1 2]", b"tr ue"),
    *(b'"\t"', b'"\n"', b'"\r"', b'"\x00"', b'"\x1f"', b'{"\x01":1}', b'"\\ "', b'"\\u 123"', b'"\\ud83d \\ude00"'),
    # other scripts' digits
    *("\u0661".encode(), "1\u0662".encode(), "\uff11".encode()),
    # not UTF-8: Latin-1, overlong, surrogates, past U+10FFFF, five bytes, cut short
    *(b'"\xe9"', b'"\xc0\xaf"', b'"\xe0\x80\xaf"', b'"\xf0\x80\x80\xaf"', b'"\xed\xa0\x80"', b'{"\xff":1}', b"\xff"),
    *(b'"\xed\xa0\xbd\xed\xb8\x80"', b'"\xf4\x90\x80\x80"', b'"\xf8\x88\x80\x80\x80"'),
    *(b'"\x80"', b'"\xe2\x82"', b'"\xc3"'),
    # byte order marks
    *(b"\xef\xbb\xbf{}", b"{}\xef\xbb\xbf", b"\xff\xfe1\x00", b"[\xef\xbb\xbf1]"),
]  # fmt: skip

WRITTEN: list[tuple[Json, bytes]] = [
    (None, b"null"),
    ([True, False], b"[true,false]"),
    ({}, b"{}"),
    ([[], {}, ""], b'[[],{},""]'),
    ({"b": 1, "a": {"d": 1, "c": [{"f": 1, "e": 2}]}}, b'{"a":{"c":[{"e":2,"f":1}],"d":1},"b":1}'),
    ("".join(map(chr, range(9))), b'"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b"'),
    ("\t\n\x0b\f\r\x0e\x1a\x1f", b'"\\t\\n\\u000B\\f\\r\\u000E\\u001A\\u001F"'),
    ('"\\/', b'"\\"\\\\/"'),
    ("\x7f\u0080\u2028\u2029\ufeff<>&'", '"\x7f\u0080\u2028\u2029\ufeff<>&\'"'.encode()),
    ("e\u0301\u00e9\U0001f600", '"e\u0301\u00e9\U0001f600"'.encode()),
    ({"\x1f\n": "\x1f"}, b'{"\\n":1}'.replace(b"\\n", b"\\u001F\\n").replace(b"1}", b'"\\u001F"}')),
    # by UTF-8 bytes U+FFFF comes before U+1F600; by UTF-16 units it would come after it
    ({"\U0001f600": 1, "\uffff": 2, "\u00e9": 3, "z": 4, "Z": 5, "": 6, "z\0": 7},
     '{"":6,"Z":5,"z":4,"z\\u0000":7,"\u00e9":3,"\uffff":2,"\U0001f600":1}'.encode()),
    ({f"{n:02}": n for n in reversed(range(40))}, ("{" + ",".join(f'"{n:02}":{n}' for n in range(40)) + "}").encode()),
    ([2**63, 2**64, -(2**64), 10**30], f"[{2**63},{2**64},-{2**64},1{'0' * 30}]".encode()),
]  # fmt: skip

# Each as the journal writes it; read by `float`, it is the value that is written so.
FLOATS = """
    0.0 -0.0 1.0 -1.5 0.1 10.0 12.5
    100.0 1.0e3 1.0e4 1.0e15 1.0e16 1.0e22 1.0e23 1.0e100           one digit: 100.0 is as short as 1.0e2
    120.0 1.2e3 1.2e4 1230.0 1.23e4 1.23e5 12340.0 1.234e5          1200.0 is longer than 1.2e3, 1230.0 is not
    123456.0 1234567.0 99999.0 99999.5 1.23456e12 -120.0 -1.2e3     the sign counts for neither
    0.01 0.001 0.0001 1.0e-5 1.0e-7 -1.0e-5                         0.0001 is as short as 1.0e-4
    0.0012 1.2e-4 0.00123 1.23e-4 1.2345e-4 1.2345e-5 -1.5e-10
    9007199254740991.0 9.007199254740992e15 -9007199254740991.0 -9.007199254740992e15         the end is 2^53
    4503599627370498.0 4503599627370495.5 1.2345678901234568e17 1.2345678901234567e19 1.0e20
    5.0e-324 2.2250738585072014e-308 1.7976931348623157e308 -1.7976931348623157e308
    0.30000000000000004 0.3333333333333333 33.333333333333336 123456789012345.6
"""
FLOAT_TEXTS = [text for line in FLOATS.splitlines() for text in line.strip().partition("  ")[0].split()]


@pytest.mark.parametrize(("text", "value"), ACCEPTED)
def test_decode_reads(text: bytes, value: Json) -> None:
    """Each spelling of the table is read, alone and very deep down, as exactly this value and type."""
    assert exactly(decode(text)) == exactly(value)
    assert exactly(decode(b"[" * 600 + text + b"]" * 600)) == "[" * 600 + exactly(value) + "]" * 600


@pytest.mark.parametrize("text", [*REFUSED_WORDS, *REFUSED_BYTES])
def test_decode_refuses(text: bytes) -> None:
    """Each spelling of the table is refused, alone, inside an array, and very deep down."""
    for depth in (0, 1, 600):
        with pytest.raises(DecodeError):
            decode(b"[" * depth + b"[0," * (depth > 0) + text + b"]" * (depth > 0) + b"]" * depth)


def test_decode_errors_are_the_packages_own() -> None:
    """A caller that catches the root error catches decode errors too."""
    assert issubclass(DecodeError, RaxolError)


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("length", [1023, 1024, 1025, 5000])
def test_integers_have_at_most_1024_bytes_with_the_sign(sign: str, length: int) -> None:
    """1,024 bytes of integer go both ways exactly; one more is refused both ways."""
    text = sign + "9" * (length - len(sign))
    value = int(sign + "1") * (10 ** (length - len(sign)) - 1)
    line = f'{{"n":[{text}]}}'.encode()
    if length <= 1024:
        assert decode(line) == {"n": [value]}
        assert encode({"n": [value]}) == line
    else:
        with pytest.raises(DecodeError):
            decode(line)
        with pytest.raises(Unencodable, match="n"):
            encode({"n": [value]})


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_nesting_costs_no_recursion(opening: bytes) -> None:
    """Thousands of levels are read and written, and an unclosed one is refused, without a recursion error."""
    closing = opening.replace(b'"a":', b"")[::-1].translate(bytes.maketrans(b"[{", b"]}"))
    text = opening * DEEP + b"1" + closing * DEEP
    value = decode(text)
    assert encode(value) == text
    with pytest.raises(DecodeError):
        decode(text[:-1])
    with pytest.raises(DecodeError):
        decode(text + b"]")
    with pytest.raises(DecodeError):
        decode(opening * DEEP)


@pytest.mark.parametrize(("value", "text"), WRITTEN)
def test_encode_writes(value: Json, text: bytes) -> None:
    """Compact, keys sorted by UTF-8 bytes at every depth; short escapes, upper-case hex, nothing else escaped."""
    assert encode(value) == text
    assert exactly(decode(text)) == exactly(value)


@pytest.mark.parametrize("text", FLOAT_TEXTS)
def test_encode_writes_floats(text: str) -> None:
    """The shortest digits, always a fraction, the decimal form when it is not longer and below 2^53."""
    value = float(text)
    assert encode(value) == text.encode()
    assert encode({"f": [value]}) == f'{{"f":[{text}]}}'.encode()
    assert exactly(decode(text.encode())) == exactly(value)


def test_tuples_are_written_as_arrays() -> None:
    """A tuple is an array, at any depth."""
    assert encode((1, ("a", [(), 2.0]))) == b'[1,["a",[[],2.0]]]'


CYCLE: list[object] = []
CYCLE.append({"again": CYCLE})


@pytest.mark.parametrize(
    "bad",
    [
        *(
            math.nan,
            math.inf,
            -math.inf,
            "\ud800",
            "a\udc00b",
            "\ud83d\ude00",
            {"\udfff": 1},
            b"bytes",
            bytearray(b"x"),
        ),
        *({1: "x"}, {None: "x"}, {True: "x"}, {("a",): 1}, {"a": 1, b"b": 2}, object(), {1, 2}, 1j, range(3), iter(())),
        *(10**1024, -(10**1023), 10**6000, CYCLE),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("depth", [0, 300])
def test_encode_names_the_place_of_what_json_cannot_carry(bad: object, depth: int) -> None:
    """`Unencodable` says where the culprit stands, however deep."""
    value: object = {"ok": [1, 2.5, "x"], "payload": {"items": [0, "\u00e9", None, {"name": bad}]}}
    for _ in range(depth):
        value = [value]
    with pytest.raises(Unencodable) as refusal:
        encode(value)
    for part in ("payload", "items", "3", "name"):
        assert part in str(refusal.value)
        assert part in refusal.value.path
    assert "ok" not in refusal.value.path


def test_encode_takes_the_same_value_twice() -> None:
    """What stands at two places is no cycle."""
    shared: list[object] = [1.5, {"a": "\x01"}]
    assert encode({"a": shared, "b": [shared, shared]}).count(b"[1.5,") == 3


VALUES = json_values(floats=True)


@given(VALUES)
def test_round_trip(value: Json) -> None:
    """What was written reads back as the same value and types, and writing that again gives the same bytes."""
    text = encode(value)
    assert text == naive_reader.dump(value).encode()
    back = decode(text)
    assert exactly(back) == exactly(value)
    assert encode(back) == text


PIECES = [
    *rb""" [ ] { } : , " "a" "a": "b": 1 0 - + .5 e E1 e400 -0 true null NaN Infinity """.split(),
    *rb""" \ \u \ud83d \ude00 \u0061 \n \x """.split(),
    *(b" ", b"\t", b"\r", b"\n", b"\0", b"\x0b", b"\x7f", b"\xc3\xa9", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"9" * 21, b"9" * 1024),
]
MUTATIONS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 3), st.one_of(st.sampled_from(PIECES), st.binary(max_size=2))), max_size=3
)


def mutated(text: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """The text with some bytes cut out and others put in their place."""
    for where, cut, piece in changes:
        at = round(where * len(text))
        text = text[:at] + piece + text[at + cut :]
    return text


def check_against_the_naive_parser(text: bytes) -> None:
    """Both parsers refuse the text, or both read the same value of the same types."""
    try:
        expected = exactly(naive_reader.parse(text))
    except naive_reader.Refused:
        with pytest.raises(DecodeError):
            decode(text)
    else:
        assert exactly(decode(text)) == expected


@given(VALUES, MUTATIONS, st.sampled_from([0, 450, 1100]))
def test_decode_agrees_with_the_naive_parser_on_mutated_texts(
    value: Json, changes: list[tuple[float, int, bytes]], depth: int
) -> None:
    """A JSON text with a few bytes changed is read or refused as by the naive parser, also very deep down."""
    text = mutated(naive_reader.dump(value).encode(), changes)
    check_against_the_naive_parser(b"[" * depth + text + b"]" * depth)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_decode_agrees_with_the_naive_parser_on_odd_texts(text: bytes) -> None:
    """Any heap of JSON fragments is read or refused as by the naive parser."""
    check_against_the_naive_parser(text)
    check_against_the_naive_parser(b'{"a":"' + text + b'"}')
