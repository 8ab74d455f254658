"""The operator's API of the fleet, on the control listener: see, add, drain, move, remove."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec

from prime_inference.domain.errors import (
    AuthenticationFailed,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
)
from prime_inference.domain.fleet import FleetInvalid
from prime_inference.gateway.fleet_status import FleetView
from prime_inference.gateway.live_fleet import LiveFleet
from prime_inference.ports.fleet import FleetEditor
from prime_inference.wire.http import Reply, Request
from prime_inference.wire.openai.errors import JSON_TYPE

log = logging.getLogger(__name__)

FLEET = "/fleet"
DEPLOYMENTS = "/fleet/deployments"
LOGGED = 500  # characters of what was sent

PLACE = frozenset({"base_url", "datacenter", "slots"})  # what can be given to a move


class FleetApi:
    """`key` is the one that must be sent; every change is in the log, with who made it."""

    def __init__(self, live: LiveFleet, view: Callable[[], FleetView], key: str) -> None:
        self._live = live
        self._view = view
        self._expected = f"Bearer {key}".encode()

    async def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request under `/fleet`. Raises ApiError."""
        given = request.header(b"authorization") or b""
        if not hmac.compare_digest(given, self._expected):
            raise AuthenticationFailed("The fleet needs the key of this gateway's state folder.")
        if request.path == FLEET and request.method in ("GET", "HEAD"):
            self._show(reply)
            return
        name, verb = _target(request)
        body = _body(request)
        forced = body.pop("force", False)
        if not isinstance(forced, bool):
            raise InvalidRequest("'force' is true or false.", param="force")
        leaves = verb in ("drain", "remove") and not forced
        require = partial(self._require_another, name) if leaves else _anything_goes
        audit = (verb, _shown(name or body.get("id")), _shown(body), request.client)
        try:
            await self._live.edit(_edit(name, verb, body), require)
        except FleetInvalid as error:
            log.warning("%s of deployment %s %s by %s: refused", *audit)
            raise InvalidRequest(str(error)) from error
        log.warning("%s of deployment %s %s by %s: done", *audit)
        self._show(reply)

    def _show(self, reply: Reply) -> None:
        reply.send(200, [JSON_TYPE], msgspec.json.encode(self._view()))

    def _require_another(self, name: str) -> None:
        """Raises InvalidRequest if no other deployment takes over the requests of this one."""
        deployments = self._view().deployments
        mine = next((one for one in deployments if one.id == name), None)
        if mine is None or mine.state != "serving":
            return
        if not any(one.model == mine.model and one.state == "serving" and one.id != name
                   for one in deployments):  # fmt: skip
            raise InvalidRequest(
                f"{name} is the last deployment that serves {mine.model};"
                ' {"force": true} takes it out all the same.'
            )


def _anything_goes() -> None:
    """Nothing forbids the change."""


def _target(request: Request) -> tuple[str, str]:
    """Which deployment, and what to do with it. Raises NotFound, MethodNotAllowed."""
    if request.path == FLEET:
        raise MethodNotAllowed("/fleet takes GET.", allowed=("GET", "HEAD"))
    if request.path == DEPLOYMENTS:
        if request.method != "POST":
            raise MethodNotAllowed(f"{DEPLOYMENTS} takes POST.", allowed=("POST",))
        return "", "add"
    path = request.path.removeprefix(f"{DEPLOYMENTS}/")
    name, _, verb = path.partition("/")
    if path == request.path or not name or verb not in ("", "drain", "resume", "move"):
        raise NotFound(f"There is nothing at {request.path[:200]}.")
    wanted = "POST" if verb else "DELETE"
    if request.method != wanted:
        raise MethodNotAllowed(f"{request.path[:200]} takes {wanted}.", allowed=(wanted,))
    return unquote(name), verb or "remove"


def _shown(value: object) -> str:
    """On one line of the log, whatever was sent."""
    try:
        return repr(value)[:LOGGED]
    except RecursionError:
        return "(nested too deep)"


def _body(request: Request) -> dict[str, Any]:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(request.body or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"The body is no JSON object: {error}.") from error


def _edit(name: str, verb: str, body: Mapping[str, Any]) -> Callable[[FleetEditor], None]:
    """Raises InvalidRequest for keys that the verb does not take."""
    known = {"add": None, "move": PLACE}.get(verb, frozenset())
    unknown = [] if known is None else sorted(body.keys() - known)
    if unknown:
        raise InvalidRequest(f"{verb} takes no {', '.join(unknown)}.")
    if verb == "move" and not body:
        raise InvalidRequest(f"move takes at least one of {', '.join(sorted(PLACE))}.")
    match verb:
        case "add":
            return lambda editor: editor.add(body)
        case "move":
            return lambda editor: editor.move(name, body)
        case "remove":
            return lambda editor: editor.remove(name)
        case _:
            return lambda editor: editor.drain(name, draining=verb == "drain")
