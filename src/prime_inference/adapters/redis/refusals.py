"""What a server means that answers with an error, and what an operator does about it.

Not in here: what is over in a moment by itself, and what nobody can tell from silence.
"""

from __future__ import annotations

import re

from redis.exceptions import RedisError, ResponseError

ADVICE = {
    "NOAUTH": "the server wants a password: put it into the Redis URL (redis://:PASSWORD@HOST)",
    "WRONGPASS": "the user name or password in the Redis URL is wrong, or the user is disabled",
    "NOPERM": "the Redis user may not do this: grant it EVAL, EVALSHA, PUBLISH and SUBSCRIBE,"
    " the commands of the scripts, and the keys and channels of the prefix",
    "READONLY": "this server is a replica: point the Redis URL at the primary",
    "LOADING": "the server is reading its data from disk: it serves when that is done",
    "OOM": "the server's memory is full: raise maxmemory, with maxmemory-policy noeviction",
    "MISCONF": "the server cannot save to disk and takes no writes: look into its log",
    "MASTERDOWN": "this server is a replica that lost its primary: point the Redis URL at that",
    "CLUSTERDOWN": "slots of the cluster are served by nobody: look at CLUSTER INFO",
    "MOVED": "this server is a node of a cluster: put a proxy that knows the cluster before it",
    "NOREPLICAS": "too few replicas confirm writes: look at min-replicas-to-write",
    "BUSY": "a script of somebody else keeps the server busy: SCRIPT KILL ends it",
    "WRONGTYPE": "a key of our prefix holds something else: use another server or prefix",
}
"""Codes at the head of error replies, as redis.io and the server's source name them."""


_IN_A_SCRIPT = re.compile(rf"^Error running script.*?\b({'|'.join(ADVICE)}) (.*)")  # before Redis 7


def refusal(error: BaseException) -> str | None:
    """The error's name, its text and what to do; None if it is no reply of a server."""
    reply = _reply(error)
    if reply is None:  # redis-py wraps what it was told as it connected
        return refusal(error.__cause__) if error.__cause__ is not None else None
    code, text = reply
    advice = ADVICE.get(code)
    return f"Redis says {code} ({text.rstrip('.')})" + (f": {advice}" if advice else "")


def _reply(error: BaseException) -> tuple[str, str] | None:
    """Code and text of an error reply."""
    text = str(error)
    if isinstance(error, RedisError) and error.status_code is not None:
        if inner := _IN_A_SCRIPT.match(text):
            return inner[1], inner[2]
        return error.status_code, text
    if isinstance(error, ResponseError):  # a code that redis-py does not know
        code, _, text = text.partition(" ")
        return code, text
    return None
