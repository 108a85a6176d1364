"""Compares a body with the fields and types that Flink sends: `flink_shapes/*.json`.

A leaf names the allowed JSON types: `int`, `float|NaN` (a number, or that string), ... `[shape]` is
a list of such shapes, and `{"<id>": shape}` is a map by ids. `{"<className>": {kind: shape}}` is
one of several kinds. `{"<null or>": shape}` may be null, and a key that ends in `?` may be omitted.
"""

import json
import re
from pathlib import Path

Shape = dict[str, "Shape"] | list["Shape"] | str

SHAPES: dict[str, Shape] = {
    route: shape
    for file in sorted((Path(__file__).parent / "flink_shapes").glob("*.json"))
    for route, shape in json.loads(file.read_text()).items()
}
KEYS = {
    "<id>": re.compile(r"[0-9a-f]{32}"),
    "<state>": re.compile("[A-Z]+"),
    "<any>": re.compile(".*"),
}


def differences(body: object, shape: Shape, at: str = "") -> list[str]:
    """Returns each missing, extra or wrongly typed part, with its place."""
    if isinstance(shape, str):
        return [] if is_of(body, shape.split("|")) else [f"{at}: {body!r} is no {shape}"]
    if isinstance(shape, list):
        if not isinstance(body, list):
            return [f"{at}: {body!r} is no list"]
        if not shape:
            return [f"{at}: {body!r} should be empty"] if body else []
        return [d for i, each in enumerate(body) for d in differences(each, shape[0], f"{at}[{i}]")]
    if "<null or>" in shape:
        return [] if body is None else differences(body, shape["<null or>"], at)
    if not isinstance(body, dict):
        return [f"{at}: {body!r} is no object"]
    if "<className>" in shape:
        kinds = shape["<className>"]
        kind = body.get("className")
        assert isinstance(kinds, dict)
        if kind not in kinds:
            return [f"{at}: there is no className {kind!r}"]
        return differences(body, kinds[kind], at)
    return in_object(body, shape, at)


def in_object(body: dict[str, object], shape: dict[str, Shape], at: str) -> list[str]:
    found = []
    for key, pattern in KEYS.items():
        if key in shape:
            for name, value in body.items():
                found += [] if pattern.fullmatch(name) else [f"{at}: the key {name!r} is no {key}"]
                found += differences(value, shape[key], f"{at}.{name}")
            return found
    required = {name for name in shape if not name.endswith("?")}
    known = {name.removesuffix("?"): inner for name, inner in shape.items()}
    found += [f"{at}: {name} is missing" for name in sorted(required - set(body))]
    found += [f"{at}: {name} is not Flink's" for name in sorted(set(body) - set(known))]
    for name in set(body) & set(known):
        found += differences(body[name], known[name], f"{at}.{name}")
    return found


def is_of(value: object, names: list[str]) -> bool:
    matches = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, float),
        "str": isinstance(value, str),
        "null": value is None,
        "NaN": value == "NaN",
    }
    return any(matches[name] for name in names)
