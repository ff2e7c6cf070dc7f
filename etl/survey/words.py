"""Words that names of columns have, and what they tell."""

import re

_PAIRS = (
    "source target, src dst, src dest, from to, head tail, h t, subject object, subj obj, s o, s t, lhs rhs, "
    "origin dest, origin destination, start end, left right, in out, u v, x y, a b, parent child, "
    "citing cited, follower followee, sender receiver, node1 node2"
)
PAIRS = frozenset((pair.split()[0], pair.split()[1]) for pair in _PAIRS.split(", "))
"""Words for the two ends of an edge."""
LHS, RHS = (frozenset(pair[side] for pair in PAIRS) for side in (0, 1))
ID = {"id", "ids", "key", "uuid", "guid", "code", "sku", "index"}
TYPE = {"type", "kind", "category", "class", "label"}
RELATION = TYPE | {"relation", "rel", "relationship", "predicate", "p", "r", "edgetype", "reltype", "edge"}
RELATION |= {"property", "interaction", "metaedge"}
WEIGHT = {"weight", "w", "score", "rating", "count", "strength", "confidence", "value", "stars", "amount"}
WEIGHT |= {"price", "quantity", "distance", "num", "number"}
CLOCK = {"timestamp", "time", "ts", "date", "datetime", "created", "updated"}
"""Words for a point in time."""
TIME = CLOCK | {"year", "day", "month", "hour", "minute", "second", "delay", "duration", "when"}
TEXT = {"name", "title", "text", "description", "comment", "url", "content", "message", "abstract"}
_KNOWN = LHS | RHS | ID | RELATION | WEIGHT | TIME | TEXT | {"user", "item"}


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: those of `userId` are user and id."""
    return tuple(re.findall(r"[a-z]+\d*|\d+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))


def names_id(name: str) -> bool:
    """Tell whether a name ends as those of ids do: `user_id`, `movieid`."""
    return bool(ID & {*words_of(name)[-1:]}) or bool(re.search(r"(?i)[a-z](id|key)s?$", name))


def is_known(name: str) -> bool:
    """Tell whether a name looks like a usual name of a column."""
    return len(words_of(name)) <= 4 and (bool(_KNOWN & {*words_of(name)[-1:]}) or names_id(name))
