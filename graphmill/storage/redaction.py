"""Redaction of secrets in URIs, for logs and records.

s3://KEY:SECRET@bucket/x?secret_key=SECRET      ->  s3://***@bucket/x?secret_key=***
https://TOKEN@host/x                             ->  https://***@host/x
https://host/x?X-Amz-Signature=SECRET&sig=S     ->  https://host/x?X-Amz-Signature=***&sig=***
"""

import json
import re

# A backslash may be the start of \" or \n in JSON, which end a secret and must stay whole.
_ESCAPED = r"\\[^@&\s\"',nrt]"
_REST = re.compile(rf"(?<=://)(?:[^\s\"'\\]|{_ESCAPED})*")
_SCHEME_END = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*$")
_MAX_SCHEME = 40
_OBJECT_STORES = ("s3", "s3a", "s3n", "gc", "gcs", "gs", "abfs", "abfss", "wasb", "wasbs")  # without ports
# What stands before the @ of these is the name of a user, or of a container.
_WITH_NAMES = ("ssh", "hdfs", "viewfs", "abfs", "abfss", "wasb", "wasbs")
_HOST = re.compile(r"(?:\[[^\]@]*\]|[^:@\[]*)(?::\d{0,5})?")
_NAMES = r"secret|token|password|passwd|passphrase|pwd|key|credential|signature"
_VALUE = rf"(?:[^&\s\"',\\]|{_ESCAPED})+"
_QUERY = re.compile(rf"([?&;](?:[\w.-]*(?:{_NAMES})[\w.-]*|sig)=){_VALUE}", re.IGNORECASE)
_BARE = re.compile(
    rf"((?<![\w.-])(?:credentials?|secret(?:_?key)?|password|passwd|sig|signature|account_?key)=){_VALUE}",
    re.IGNORECASE,
)
_odd: set[str] = set()  # secrets with spaces or quotes, of which a text does not show where they end


def user_info(scheme: str, rest: str) -> str:
    """Name and password, or the token, in a URI's `rest` behind `scheme://`; "" if there are none.

    A password may hold / and @, which should be quoted: the last @ ends it. What follows a port is a path.
    """
    authority = rest.partition("/")[0]
    name, at, _ = authority.partition("@")
    is_host = not at and scheme.lower() not in _OBJECT_STORES and _HOST.fullmatch(authority)
    if ":" in name and not is_host:
        return rest.rpartition("@")[0]
    return name if at else ""


def secret_of(scheme: str, rest: str) -> str:
    """The part of `user_info` that is secret: all of it, or nothing."""
    info = user_info(scheme, rest)
    return info if ":" in info or scheme.lower() not in _WITH_NAMES else ""


def remember(scheme: str, rest: str) -> None:
    """Keep in mind the secret of a URI that a text cannot show whole."""
    if "@" in rest and re.search(r"[\s\"'\\]", secret := secret_of(scheme, rest)):
        _odd.update((secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]))


def redacted(text: str) -> str:
    """`text` with its secrets replaced by `***`."""
    for secret in sorted(_odd, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _REST.sub(_without_secret, text)
    for pattern in (_QUERY, _BARE):
        text = pattern.sub(r"\1***", text)
    return text


def _without_secret(match: re.Match[str]) -> str:
    end = match.start() - len("://")
    scheme = _SCHEME_END.search(match.string[max(end - _MAX_SCHEME, 0) : end])
    secret = secret_of(scheme[0], match[0]) if scheme else ""
    return match[0].replace(secret, "***", 1) if secret else match[0]
