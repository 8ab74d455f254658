"""What a request may use, and what it cost: the hooks of a generation's life.

`admit` before the first attempt, `charge` before the last bytes of a whole answer, `close`
when everything is over, whatever happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
from msgspec import structs

from prime_inference.accounts.directory import check_model
from prime_inference.accounts.live import LiveDirectory
from prime_inference.billing.bill import Bill
from prime_inference.billing.holds import Hold, Holds
from prime_inference.billing.rating import most, most_reserved
from prime_inference.billing.refusals import soonest
from prime_inference.domain.errors import InternalFailure, ReservationExhausted
from prime_inference.domain.generation import Generation
from prime_inference.domain.limits import Limit
from prime_inference.domain.models import Model
from prime_inference.domain.money import usd_number
from prime_inference.domain.prices import Price
from prime_inference.domain.usage import Usage
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.gateway.cache_salts import CacheSalts
from prime_inference.gateway.operations import Operation
from prime_inference.gateway.run import Run
from prime_inference.ports.outbox import Outbox, OutboxUnavailable
from prime_inference.wire.openai.chat_request import ImagePart, UserMessage
from prime_inference.wire.openai.estimate import estimated_tokens

log = logging.getLogger(__name__)

GATHER_S = 0.25  # of events without a price: as gateway.settlement
TEMPLATE_TOKENS = 256  # what chat templates add of their own; the longest known adds 60
RECENT = 4096  # events that can be asked after before the ledger has them

_encode = msgspec.json.Encoder().encode


class Account:
    """The bill and the hold of one request."""

    __slots__ = ("_billing", "_model", "_operation", "bill", "hold")

    def __init__(
        self, billing: Billing, operation: Operation, model: Model, bill: Bill, hold: Hold | None
    ) -> None:
        self._billing = billing
        self._operation = operation
        self._model = model
        self.bill = bill
        self.hold = hold

    def charge(self, generation: Generation) -> float:
        """Commit a whole answer before its end is sent; its cost in dollars.

        Raises InternalFailure: what cannot be accounted is not answered.
        """
        try:
            return usd_number(self.bill.settle(self._whole_usage(generation)).cost)
        except OutboxUnavailable as error:
            log.error("request %s cannot be accounted: %s", generation.id, error)
            raise InternalFailure("The answer could not be accounted for.") from error

    def close(self, generation: Generation) -> None:
        """The request is over; what was not charged before is now."""
        self._billing.close(self, self._whole_usage(generation))

    def _whole_usage(self, generation: Generation) -> Generation:
        """Its prompt estimated, where something was generated and the engine told of no prompt;
        what no such request can use cut off."""
        usage = generation.usage
        if usage.source == "counted" and not usage.prompt_tokens:
            prompt = estimated_tokens(self._operation.content)
            usage = structs.replace(usage, prompt_tokens=prompt)
        prompt, completion = bounds(self._operation, self._model)
        if usage.prompt_tokens > prompt or usage.completion_tokens > completion:
            usage = structs.replace(
                usage,
                prompt_tokens=min(usage.prompt_tokens, prompt),
                completion_tokens=min(usage.completion_tokens, completion),
                source="counted",
            )
        return generation if usage is generation.usage else structs.replace(generation, usage=usage)


class Billing:
    """Accounts of all requests of one gateway process."""

    def __init__(
        self, directory: LiveDirectory, outbox: Outbox, holds: Holds, salts: CacheSalts
    ) -> None:
        self._salts = salts
        self._directory = directory
        self._outbox = outbox
        self._holds = holds
        self._loop = asyncio.get_running_loop()
        self._gathered: list[UsageEvent] = []
        self._timer: asyncio.TimerHandle | None = None
        self._recent: OrderedDict[str, UsageEvent] = OrderedDict()

    async def admit(self, run: Run, model: Model, begun: Callable[[str], bool]) -> None:
        """Open the request's account.

        A reservation that has not `begun` here, which takes a second, is none yet: what it may
        use is decided now, and holds are made for that.

        Raises PermissionDenied, BudgetExceeded, RateLimited, ReservationExhausted.
        """
        directory = self._directory.current
        key = run.key
        if key.scope is not None:
            check_model(key, model.id)
        price = directory.prices.at(model.id, run.started_at)
        flex = run.operation.flex
        if directory.reservations and not flex:
            active = directory.reserved(key.tenant, model.id, run.started_at)
            run.reserved = tuple(each for each in active if begun(each.id))
            run.may_share = not run.reserved or any(each.spill for each in run.reserved)
        limits = directory.limits(key.key_id, key.tenant, model.id)
        hold = None
        if limits or any(each.tokens_per_second for each in run.reserved):
            hold = await self._hold(run, model, price, limits)
        bill = Bill(self._outbox, price, run.reserved)
        run.account = Account(self, run.operation, model, bill, hold)
        run.operation = structs.replace(run.operation, cache_salt=self._salts.of(key.tenant))

    async def _hold(
        self, run: Run, model: Model, price: Price | None, limits: Sequence[Limit]
    ) -> Hold | None:
        """A part of every limit, and of the output of each reservation that it may use.

        One whose output is used up is left out: the request goes by the others, or spills.
        """
        prompt, completion = most_tokens(run.operation, model)
        full = 0 if price is None else most(price, prompt, completion, batch=run.operation.flex)
        refused: list[ReservationExhausted] = []
        while True:
            outputs = [limit for each in run.reserved if (limit := each.output_limit) is not None]
            cost = full if run.may_share else most_reserved(full, run.reserved)
            try:
                return await self._holds.take(
                    run.id,
                    [*limits, *outputs],
                    tokens=prompt + completion,
                    cost=cost,
                    at=run.started_at,  # as the usage event
                )
            except ReservationExhausted as used_up:
                run.over = used_up.over
                refused.append(used_up)
                left = [each for each in run.reserved if each.id not in used_up.reservations]
                if not left and not run.may_share:
                    raise soonest(refused) from None
                run.reserved = tuple(left)

    def close(self, account: Account, generation: Generation) -> None:
        """Settle bill and hold of a request that is over. Never raises."""
        bill = account.bill
        event = bill.event
        if event is None:
            event = self._late(bill, generation)
        if account.hold is not None:
            used = event.prompt_tokens + event.completion_tokens
            self._holds.settle(
                account.hold,
                tokens=used,
                cost=event.cost,
                output=event.completion_tokens,
                pool=event.pool,
            )
        self._recent[event.generation] = event
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    def recent(self, tenant: str, generation: str) -> UsageEvent | None:
        """An event of this process that the ledger may not have yet."""
        event = self._recent.get(generation)
        return event if event is not None and event.tenant == tenant else None

    def flush(self) -> None:
        """Write the events that are gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._gathered = self._gathered, []
        try:
            if batch:
                self._outbox.append(batch)
        except OutboxUnavailable as error:
            log.error("usage of %d requests without a price is lost: %s", len(batch), error)

    def _late(self, bill: Bill, generation: Generation) -> UsageEvent:
        """The event of a request that was not charged: free, cut, cancelled or failed."""
        event = bill.rate(generation)
        if event.cost == 0:
            if generation.outcome != "refused":
                self._gather(event)
            return event
        try:
            return bill.settle(generation)
        except OutboxUnavailable as error:
            log.error("usage of request %s is lost: %s", generation.id, error)
            return event

    def _gather(self, event: UsageEvent) -> None:
        self._gathered.append(event)
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER_S, self.flush)


def charging(run: Run, now: Callable[[], float]) -> Callable[[Usage], float | None] | None:
    """What an answer's end calls with its usage to learn the cost; None where nobody bills."""
    account = run.account
    if account is None or account.bill.price is None:
        return None

    def charge(usage: Usage) -> float | None:
        run.usage, run.outcome = usage, "complete"
        return account.charge(run.generation(now()))

    return charge


def bounds(operation: Operation, model: Model) -> tuple[int, int]:
    """Prompt and completion tokens that no such request can pass, whatever is in it."""
    if operation.route == "embeddings":
        return model.context_tokens * max(1, operation.inputs), 0
    completion = operation.token_limit or min(model.max_output_tokens, model.context_tokens)
    return model.context_tokens * operation.choices, completion * operation.choices


def most_tokens(operation: Operation, model: Model) -> tuple[int, int]:
    """Prompt and completion tokens that a request can use at most: what is held.

    No tokenizer makes more tokens of a text than it has bytes.
    """
    prompt, completion = bounds(operation, model)
    written = len(_encode(operation.content)) + len(_encode(operation.parameters))
    if operation.route == "embeddings":
        return min(written, prompt), 0
    if "image" in model.modalities:
        written += _image_tokens(operation, model)
    return min((written + TEMPLATE_TOKENS) * operation.choices, prompt), completion


def _image_tokens(operation: Operation, model: Model) -> int:
    """What the images of a request are at most, beyond the bytes that they are written in."""
    images = [
        part.image_url.url
        for message in operation.content.get("messages", ())
        if isinstance(message, UserMessage) and not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, ImagePart)
    ]
    if images and model.image_tokens is None:
        return model.context_tokens
    return sum((model.image_tokens or 0) - len(url) for url in images)
