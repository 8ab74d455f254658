"""The part of the OpenAPI document that describes what a key may ask about its account."""

from __future__ import annotations

from typing import Any

from prime_inference.domain.limits import LimitKind

COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
DOLLARS = {"type": "number"}
DOLLARS_OR_NULL = {"type": ["number", "null"]}
EXACT_DOLLARS = {"type": "string", "pattern": r"^-?\d+\.\d{2,9}$"}
DAY = {"type": "string", "format": "date", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}


def _object(required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **more}}


def _data(value: dict[str, Any]) -> dict[str, Any]:
    return _object({"data": value})


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


LIMIT = _object(
    {
        "id": TEXT,
        "kind": {"enum": [str(kind) for kind in LimitKind]},
        "limit": {"type": ["integer", "string"], "description": "A count; of a budget, dollars."},
        "key_id": TEXT_OR_NULL,
        "tenant": TEXT_OR_NULL,
        "model": TEXT_OR_NULL,
        "resets_at": {"type": ["number", "null"], "description": "Seconds since the epoch."},
    }
)

ANSWERS: dict[str, dict[str, Any]] = {
    "Key": _data(
        _object(
            {
                "label": TEXT,
                "tenant": TEXT,
                "last_four": TEXT,
                "limit": DOLLARS_OR_NULL,
                "limit_reset": TEXT_OR_NULL,
                "limit_remaining": DOLLARS_OR_NULL,
                "usage": DOLLARS,
                "usage_daily": DOLLARS,
                "usage_weekly": DOLLARS,
                "usage_monthly": DOLLARS,
                "is_free_tier": {"type": "boolean"},
                "expires_at": {"type": ["number", "null"]},
                "limits": _list(LIMIT),
            }
        )
    ),
    "Generation": _data(
        _object(
            {
                "id": TEXT,
                "model": TEXT,
                "tenant": TEXT,
                "key_id": TEXT,
                "provider_name": TEXT,
                "pool": TEXT,
                "service_tier": {"enum": ["default", "flex"]},
                "created_at": TEXT,
                "streamed": {"type": "boolean"},
                "cancelled": {"type": "boolean"},
                "outcome": {"enum": ["complete", "cancelled", "shutdown", "failed"]},
                "tokens_prompt": COUNT,
                "tokens_completion": COUNT,
                "native_tokens_cached": COUNT,
                "native_tokens_reasoning": COUNT,
                "tokens_estimated": {"type": "boolean"},
                "latency": COUNT,
                "generation_time": COUNT,
                "price_version": COUNT,
                "total_cost": DOLLARS,
                "total_cost_usd": EXACT_DOLLARS,
            }
        )
    ),
    "UsageReport": _object(
        {
            "group_by": _list(TEXT),
            "data": _list(
                _object(
                    {
                        "requests": COUNT,
                        "prompt_tokens": COUNT,
                        "cached_tokens": COUNT,
                        "completion_tokens": COUNT,
                        "reasoning_tokens": COUNT,
                        "cost_usd": EXACT_DOLLARS,
                    },
                    **dict.fromkeys(("day", "key", "model", "pool", "tenant"), TEXT),
                )
            ),
        }
    ),
    "Wallet": _object(
        {
            "wallet_id": TEXT,
            "team_id": TEXT,
            "balance_usd": DOLLARS,
            "balance_usd_text": EXACT_DOLLARS,
            "currency": {"const": "USD"},
            "total_billings": COUNT,
            "recent_billings": _list(
                _object(
                    {
                        "id": TEXT,
                        "created_at": TEXT,
                        "updated_at": TEXT,
                        "amount_usd": DOLLARS,
                        "amount_usd_text": EXACT_DOLLARS,
                        "currency": {"const": "USD"},
                        "resource_type": {"enum": ["usage", "credit", "adjustment"]},
                        "resource_id": TEXT_OR_NULL,
                        "memo": TEXT,
                    }
                )
            ),
        }
    ),
}

GROUPS = {
    "type": "string",
    "pattern": "^(day|key|model|pool|tenant)(,(day|key|model|pool|tenant))*$",
    "description": "Names with commas between.",
}
WHOLE = {"type": "integer", "minimum": 0, "maximum": 10**10 - 1}

QUERIES: dict[str, tuple[str, str, dict[str, dict[str, Any]]]] = {
    "/key": ("showKey", "Key", {"teamId": TEXT}),
    "/generation": (
        "showGeneration",
        "Generation",
        {"id": {**TEXT, "minLength": 1}, "teamId": TEXT},
    ),
    "/usage": (
        "listUsage",
        "UsageReport",
        {
            "group_by": GROUPS,
            "key": TEXT,
            "model": TEXT,
            "from": DAY,
            "to": DAY,
            "teamId": TEXT,
        },
    ),
    "/billing/wallet": ("showWallet", "Wallet", {"limit": WHOLE, "offset": WHOLE, "teamId": TEXT}),
}
"""Paths with the operation's name, its answer, and what its query takes."""

REQUIRED = frozenset({"id"})
