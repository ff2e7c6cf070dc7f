"""Redaction of secrets in URIs, for logs and records.

s3://KEY:SECRET@bucket/x?secret_key=SECRET      ->  s3://***@bucket/x?secret_key=***
https://host/x?X-Amz-Signature=SECRET&sig=SECRET -> https://host/x?X-Amz-Signature=***&sig=***
"""

import re

# A backslash may be the start of \" or \n in JSON, which end a secret and must stay whole.
_ESCAPED = r"\\[^@&\s\"',nrt]"
# A secret may hold slashes. What follows a port is a path; object stores have no ports.
_OBJECT_STORES = r"(?:s3[an]?|gcs?|gs|abfss?|wasbs?)://"
_WITHOUT_PORT = r"[a-z][a-z0-9+.-]*://(?![^/@\s\"']*:\d{1,5}/)"
_USER_INFO = re.compile(
    rf"(\b(?:{_OBJECT_STORES}|{_WITHOUT_PORT}))[^/@\s\"']*:(?:[^@\s\"'\\]|{_ESCAPED})*@", re.IGNORECASE
)
_NAMES = r"secret|token|password|passwd|passphrase|pwd|key|credential|signature"
_VALUE = rf"(?:[^&\s\"',\\]|{_ESCAPED})+"
_QUERY = re.compile(rf"([?&;](?:[\w.-]*(?:{_NAMES})[\w.-]*|sig)=){_VALUE}", re.IGNORECASE)
_BARE = re.compile(
    rf"((?<![\w.-])(?:credentials?|secret(?:_?key)?|password|passwd|sig|signature|account_?key)=){_VALUE}",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """`text` with its secrets replaced by `***`."""
    for pattern, clean in ((_USER_INFO, r"\1***@"), (_QUERY, r"\1***"), (_BARE, r"\1***")):
        text = pattern.sub(clean, text)
    return text
