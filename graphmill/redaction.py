"""Secrets that stand in URIs, taken out of whatever is logged or recorded.

s3://KEY:SECRET@bucket/x?secret_key=SECRET   ->   s3://***@bucket/x?secret_key=***
"""

import re

_USER_INFO = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/@\s\"']*:[^/@\s\"']*@")
# A backslash may be the start of \" or \n in JSON, which end a secret and must stay whole.
_QUERY = re.compile(
    r"([?&][\w.-]*(?:secret|token|password|passwd|key)[\w.-]*=)(?:[^&\s\"',\\]|\\[^&\s\"',nrt])+",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """`text` with its secrets replaced by `***`."""
    return _QUERY.sub(r"\1***", _USER_INFO.sub(r"\1***@", text))
