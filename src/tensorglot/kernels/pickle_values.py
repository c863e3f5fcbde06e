"""The values of a pickle as names and leaves: containers in containers, whose items may be shared.

One container may be referred to many times, so what is written grows with what the caller
allows, not with the pickle. A container is a list, a tuple or a dict, which is a list of
keys and values in turn of a type of its own (`pairs`); a leaf is anything else, an empty
container, and a list or tuple of scalars.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

LARGE = -1
KEY = -2
DUPLICATE = -3
"""Faults: nested too deeply or larger than allowed, a key that is neither text nor a number, two leaves of one name."""
_LARGE = cython.declare(cython.longlong, -1)
_KEY = cython.declare(cython.longlong, -2)
_DUPLICATE = cython.declare(cython.longlong, -3)


def least_nbytes(value: Any, pairs: Any, depth: cython.Py_ssize_t, most: cython.longlong) -> int:
    """The size of the smallest pickle that has the values of a container and shares none of them.

    LARGE if that is more than `most`, which is at most 2**60.
    """
    nbytes: cython.longlong = _least(value, pairs, depth, most, {})
    return int(nbytes)


@cython.cfunc
def _least(
    value: Any, pairs: Any, depth: cython.Py_ssize_t, most: cython.longlong, known: dict[Any, Any]
) -> cython.longlong:
    """A container is counted once, by its id, and each that contains it adds the sum."""
    nbytes: cython.longlong = 0
    inside: cython.longlong
    found: Any
    if depth < 0:
        return _LARGE
    for item in value:
        kind: Any = type(item)
        nbytes += 1 if item is None or kind is bool else 2
        if (kind is list or kind is tuple or kind is pairs) and len(item) > 0:
            found = known.get(id(item))
            inside = _least(item, pairs, depth - 1, most, known) if found is None else found
            if inside < 0:
                return _LARGE
            nbytes += inside  # both are at most `most`, so the sum does not overflow
        if nbytes > most:
            return _LARGE
    known[id(value)] = nbytes
    return nbytes


def leaves(
    root: Any,
    pairs: Any,
    named: Any,
    letters: cython.longlong,
    depth: cython.Py_ssize_t,
    values: dict[str, Any],
    others: dict[str, int],
    found: list[Any],
) -> int:
    """Adds the leaves of a value by their names; returns a fault, or what is left of `letters`.

    A name is the keys that lead to a leaf, joined by dots. Letters are those of names and
    texts: each item of a container takes the name of the container, and each text its length.
    Plain leaves are `values`: a tuple becomes a list, an empty dict a dict, and a value of the
    type `named` its name. All else is `found`, each once, at the position that `others` has.
    After DUPLICATE, the last of `found` is the name.
    """
    left: cython.longlong
    known: dict[Any, Any] = {}
    if _is_leaf(root, pairs):
        return letters if _add("", root, pairs, named, values, others, found, known) else DUPLICATE
    left = _visit("", True, root, pairs, named, letters, depth, values, others, found, known)
    return int(left)


@cython.cfunc
def _visit(
    name: str,
    top: cython.bint,
    value: Any,
    pairs: Any,
    named: Any,
    letters: cython.longlong,
    depth: cython.Py_ssize_t,
    values: dict[str, Any],
    others: dict[str, int],
    found: list[Any],
    known: dict[Any, Any],
) -> cython.longlong:
    """Items of the `top` value are named by their keys alone, others by the names of their containers too."""
    kind: Any = type(value)
    keyed: cython.bint = kind is pairs
    leaf: cython.bint = not keyed
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = len(value)
    prefix: str
    item_name: str
    letters -= len(name) * count
    for item in value:
        kind = type(item)
        if kind is str or kind is bytes:
            letters -= len(item)
        elif not (item is None or kind is int or kind is float or kind is bool):
            leaf = False
    if letters < 0 or depth < 0:
        return _LARGE
    if leaf:
        return letters if _add(name, value, pairs, named, values, others, found, known) else _DUPLICATE
    prefix = "" if top else name + "."
    # A dict has as many keys as values: at + 1 < count where it is at a key.
    while at < count and letters >= 0:
        if keyed:
            key: Any = value[at]
            kind = type(key)
            if not (kind is str or kind is int or kind is float or kind is bool or key is None):
                return _KEY
            item_name = prefix + (key if kind is str else str(key))
            at += 1
        else:
            item_name = f"{prefix}{at}"
        item = value[at]
        if not _is_leaf(item, pairs):
            letters = _visit(item_name, False, item, pairs, named, letters, depth - 1, values, others, found, known)
        elif not _add(item_name, item, pairs, named, values, others, found, known):
            return _DUPLICATE
        at += 1
    return letters


@cython.cfunc
def _is_leaf(value: Any, pairs: Any) -> cython.bint:
    """Whether a value has no items; a container of scalars is a leaf, too."""
    kind: Any = type(value)
    return not (kind is list or kind is tuple or kind is pairs) or len(value) == 0


@cython.cfunc
def _add(
    name: str,
    value: Any,
    pairs: Any,
    named: Any,
    values: dict[str, Any],
    others: dict[str, int],
    found: list[Any],
    known: dict[Any, Any],
) -> cython.bint:
    """Adds a leaf; whether its name is new. `known` has the positions of what is found by id."""
    kind: Any = type(value)
    position: Any
    if name in values or name in others:
        found.append(name)
        return False
    if value is None or kind is bool or kind is int or kind is float or kind is str or kind is bytes or kind is list:
        values[name] = value
    elif kind is tuple:
        values[name] = list(value)
    elif kind is pairs:
        values[name] = {}
    elif kind is named:
        values[name] = value.name
    else:
        position = known.get(id(value))
        if position is None:
            position = len(found)
            known[id(value)] = position
            found.append(value)
        others[name] = position
    return True
