"""What a caller may ask about his own key, usage and bill, on the public port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import msgspec

from prime_inference.accounts.live import LiveDirectory
from prime_inference.domain.errors import CapacityExhausted, InvalidRequest, NotFound
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.limits import (
    DAY_S,
    Limit,
    LimitKind,
    window_end,
    window_last_day,
    window_start,
)
from prime_inference.domain.moments import iso, moment
from prime_inference.domain.money import usd_number, usd_text
from prime_inference.domain.pools import FLEX
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.gateway.auth import Authenticator
from prime_inference.gateway.billing import Billing
from prime_inference.ports.ledger import (
    Ledger,
    LedgerUnavailable,
    Transfer,
    UsageFilter,
    tenant_account,
)
from prime_inference.wire.http import Reply, Request
from prime_inference.wire.openai.errors import JSON_TYPE

MICRO = 1_000_000
MOST_ROWS = 1_000
MOST_DIGITS = 10  # of a place in a list; no database counts further than 18

Endpoint = Callable[[Request, Reply, str], Awaitable[None]]


class AccountApi:
    """`GET /key`, `/generation`, `/usage` and `/billing/wallet`."""

    def __init__(
        self, auth: Authenticator, directory: LiveDirectory, billing: Billing, ledger: Ledger
    ) -> None:
        self._auth = auth
        self._directory = directory
        self._billing = billing
        self._ledger = ledger

    def routes(self, base: str) -> Mapping[str, dict[str, Endpoint]]:
        """Paths and methods, for the gateway's own routes."""
        answers = {
            "key": self._key,
            "generation": self._generation,
            "usage": self._usage,
            "billing/wallet": self._wallet,
        }
        return {
            f"{base}/{path}": {"GET": self._endpoint(answer)} for path, answer in answers.items()
        }

    def _endpoint(self, answer: Callable[[ApiKey, dict[str, str]], Awaitable[Any]]) -> Endpoint:
        async def endpoint(request: Request, reply: Reply, request_id: str) -> None:
            query = query_of(request)
            key = self._auth.authenticate(request, team=query.get("teamId"))
            try:
                body = msgspec.json.encode(await answer(key, query))
            except LedgerUnavailable as error:
                raise CapacityExhausted("The ledger is away.", retry_after=1) from error
            reply.send(200, [JSON_TYPE, (b"x-request-id", request_id.encode())], body)

        return endpoint

    async def _key(self, key: ApiKey, query: dict[str, str]) -> object:
        """In OpenRouter's shape: what this key has spent and may still spend."""
        now = time.time()
        spent: dict[LimitKind, int] = {
            kind: await self._spent(UsageFilter(key_id=key.key_id), kind, now)
            for kind in LimitKind
            if kind.is_budget and kind is not LimitKind.WALLET
        }
        limits = [
            limit
            for limit in self._directory.current.limits(key.key_id, key.tenant, "")
            if limit.model is None
        ]
        own = _own_budget(limits, key.key_id)
        left = None if own is None else max(0, own.most - spent[own.kind])
        return {
            "data": {
                "label": key.name,
                "tenant": key.tenant,
                "last_four": key.last_four,
                "limit": None if own is None else usd_number(own.most),
                "limit_reset": None if own is None else own.kind.removeprefix("budget_"),
                "limit_remaining": None if left is None else usd_number(left),
                "usage": usd_number(spent[LimitKind.BUDGET_TOTAL]),
                "usage_daily": usd_number(spent[LimitKind.BUDGET_DAILY]),
                "usage_weekly": usd_number(spent[LimitKind.BUDGET_WEEKLY]),
                "usage_monthly": usd_number(spent[LimitKind.BUDGET_MONTHLY]),
                "is_free_tier": False,
                "expires_at": key.expires_at,
                "limits": [limit_object(limit, now) for limit in limits],
            }
        }

    async def _generation(self, key: ApiKey, query: dict[str, str]) -> object:
        wanted = query.get("id", "")
        if not wanted:
            raise InvalidRequest("Name a generation: /generation?id=<id>.", param="id")
        # `chatcmpl-`, `cmpl-`, `resp_` and `msg_` are how answers show it
        generation = wanted.replace("_", "-").rpartition("-")[2]
        event = self._billing.recent(key.tenant, generation)
        if event is None:
            event = await asyncio.to_thread(self._ledger.event, key.tenant, generation)
        if event is None:
            raise NotFound("There is no such generation of this account.", param="id")
        return {"data": generation_object(event)}

    async def _usage(self, key: ApiKey, query: dict[str, str]) -> object:
        return await asyncio.to_thread(usage_report, self._ledger, query, key.tenant)

    async def _wallet(self, key: ApiKey, query: dict[str, str]) -> object:
        return await asyncio.to_thread(wallet, self._ledger, key.tenant, query)

    async def _spent(self, where: UsageFilter, kind: LimitKind, now: float) -> int:
        first = window_start(kind, now)
        where = replace(where, first_day=first, last_day=window_last_day(kind, first))
        (total,) = await asyncio.to_thread(self._ledger.usage, (), where)
        return total.cost


def query_of(request: Request) -> dict[str, str]:
    """The last value of each parameter. Raises InvalidRequest for what no database holds."""
    query = {name: values[-1] for name, values in parse_qs(request.query).items()}
    for name, value in query.items():
        if not value.isprintable():
            raise InvalidRequest(
                f"'{name[:100]}' holds an unprintable character.", param=name[:100]
            )
    return query


def limit_object(limit: Limit, now: float) -> dict[str, object]:
    """A limit as JSON; budgets in dollars."""
    return {
        "id": limit.id,
        "kind": str(limit.kind),
        "limit": usd_text(limit.most) if limit.kind.is_budget else limit.most,
        "key_id": limit.key_id,
        "tenant": limit.tenant,
        "model": limit.model,
        "resets_at": window_end(limit.kind, now) if limit.kind.is_budget else None,
    }


def generation_object(event: UsageEvent) -> dict[str, object]:
    """In OpenRouter's shape, with what it cost to the last digit."""
    return {
        "id": event.generation,
        "model": event.model,
        "tenant": event.tenant,
        "key_id": event.key_id,
        "provider_name": event.deployment,
        "pool": event.pool,
        "service_tier": "flex" if event.pool == FLEX else "default",
        "created_at": iso(event.at / MICRO),
        "streamed": event.streamed,
        "cancelled": event.outcome == "cancelled",
        "outcome": event.outcome,
        "tokens_prompt": event.prompt_tokens,
        "tokens_completion": event.completion_tokens,
        "native_tokens_cached": event.cached_tokens,
        "native_tokens_reasoning": event.reasoning_tokens,
        "tokens_estimated": event.estimated,
        "latency": event.first_token_us // 1000,
        "generation_time": event.duration_us // 1000,
        "price_version": event.price_version,
        "total_cost": usd_number(event.cost),
        "total_cost_usd": usd_text(event.cost),
    }


def usage_report(ledger: Ledger, query: Mapping[str, str], tenant: str | None) -> dict[str, object]:
    """Sums of usage as the query asks for them. Raises InvalidRequest."""
    names = [name for name in query.get("group_by", "day").split(",") if name]
    groups: Any = ["key_id" if name == "key" else name for name in names]
    where = UsageFilter(
        tenant, query.get("key"), query.get("model"), _day(query, "from"), _day(query, "to")
    )
    try:
        sums = ledger.usage(groups, where)
    except ValueError as error:
        raise InvalidRequest(str(error), param="group_by") from error
    return {
        "group_by": names,
        "data": [
            {
                **{
                    name: day_text(value) if name == "day" else value
                    for name, value in zip(names, row.group, strict=True)
                },
                "requests": row.requests,
                "prompt_tokens": row.prompt_tokens,
                "cached_tokens": row.cached_tokens,
                "completion_tokens": row.completion_tokens,
                "reasoning_tokens": row.reasoning_tokens,
                "cost_usd": usd_text(row.cost),
            }
            for row in sums
        ],
    }


def wallet(ledger: Ledger, tenant: str, query: Mapping[str, str]) -> dict[str, object]:
    """The shape that `prime wallet` reads."""
    limit = min(_number(query, "limit", 20), MOST_ROWS)
    transfers = ledger.transfers(tenant, limit, _number(query, "offset", 0))
    account = tenant_account(tenant)
    return {
        "wallet_id": account,
        "team_id": tenant,
        "balance_usd": usd_number(ledger.balance(account)),
        "balance_usd_text": usd_text(ledger.balance(account)),
        "currency": "USD",
        "total_billings": ledger.transfer_count(tenant),
        "recent_billings": [_billing(transfer, account) for transfer in transfers],
    }


def _billing(transfer: Transfer, account: str) -> dict[str, object]:
    amount = transfer.amount if transfer.credit == account else -transfer.amount
    return {
        "id": transfer.reference,
        "created_at": iso(transfer.at / MICRO),
        "updated_at": iso(transfer.at / MICRO),
        "amount_usd": usd_number(amount),
        "amount_usd_text": usd_text(amount),
        "currency": "USD",
        "resource_type": transfer.kind,
        "resource_id": transfer.about or None,
        "memo": transfer.memo,
    }


def _own_budget(limits: list[Limit], key_id: str) -> Limit | None:
    """The tightest budget that is this key's alone."""
    own = [limit for limit in limits if limit.kind.is_budget and limit.key_id == key_id]
    return min(own, key=lambda limit: limit.most, default=None)


def day_text(day: object) -> str:
    assert isinstance(day, int)
    return iso(day * DAY_S).partition("T")[0]


def _day(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return int(moment(text) // DAY_S)
    except ValueError as error:
        raise InvalidRequest(f"'{name}' is a day like 2026-12-31: {error}.", param=name) from None


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise InvalidRequest(
            f"'{name}' is a whole number of at most {MOST_DIGITS} digits.", param=name
        )
    return int(text)
