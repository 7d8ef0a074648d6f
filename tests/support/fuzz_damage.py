"""What `fuzzing` does to bytes and to JSON."""

import json

NUMBERS = [0, -1, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32 + 5, 2**53, 2**63 - 1, 2**64, 10**30]
VALUES = [*NUMBERS, 1.5, -0.0, 1e308, float("inf"), float("nan"), "", "16", "../x", "/etc/passwd"]
VALUES += [None, True, False, [], {}, [[]], {"": None}, "a" * 5000, "\x00", "\x1b[2J\n", "é\ud800"]


def damaged(content: bytes, rng) -> bytes:
    """Bytes with one to three changes."""
    content = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(content) + 1)
        kind = rng.choice(["flip", "cut", "number", "zeros", "insert", "repeat", "drop", "ones"])
        if kind == "flip" and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del content[at:]
        elif kind == "number":
            size = rng.choice([1, 2, 4, 8])
            number = rng.choice(NUMBERS) % 256**size
            content[at : at + size] = number.to_bytes(size, rng.choice(["little", "big"]))
        elif kind in ("zeros", "ones"):
            content[at : at + rng.randrange(1, 64)] = bytes([255 * (kind == "ones")]) * 8
        elif kind == "insert":
            content[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif kind == "repeat":
            content[at:at] = content[at : at + rng.randrange(1, 200)]
        elif kind == "drop":
            del content[at : at + rng.randrange(1, 40)]
    return bytes(content)


def changed(value, rng):
    """A JSON value with one to three entries changed, removed, added or doubled."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randrange(1, 4)):
        places = [*_places(value)]
        if not places:
            return rng.choice(VALUES)
        container, key = rng.choice(places)
        kind = rng.choice(["value", "value", "value", "remove", "other"])
        if kind == "remove":
            del container[key]
        else:
            same = container[rng.choice([*_keys(container)])]
            container[key] = same if kind == "other" else rng.choice(VALUES)
    return value


def _keys(container):
    return container if isinstance(container, dict) else range(len(container))


def _places(value):
    for key in _keys(value) if isinstance(value, dict | list) else ():
        yield value, key
        yield from _places(value[key])


def as_text(value, rng) -> bytes:
    """JSON, sometimes damaged as text, sometimes very deep."""
    text = json.dumps(value).encode()
    turn = rng.random()
    if turn < 0.15:
        return damaged(text, rng)
    if turn < 0.17:
        return b'{"a":' * 100_000
    if turn < 0.19:
        return b"[" * 100_000
    return text
