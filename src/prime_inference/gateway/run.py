"""What is known of a generation while it is being served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from prime_inference.domain.generation import Generation, Outcome
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.pools import SERVERLESS, Over
from prime_inference.domain.reservations import Reservation
from prime_inference.domain.usage import NO_USAGE, Usage
from prime_inference.gateway.operations import Operation
from prime_inference.reliability.slots import Priority
from prime_inference.wire.http import HeaderLines

if TYPE_CHECKING:
    from prime_inference.gateway.billing import Account


class Run(Struct, gc=False):
    """Mutable while the request lives; `generation` is its final account."""

    id: str
    operation: Operation
    key: ApiKey
    started: float  # event loop clock
    started_at: float  # seconds since the epoch
    model: str = ""  # the catalogue's; what a client made up never becomes a label
    revision: str = ""  # of who writes the answer, as the fleet had it when he began
    session: int = 0  # key of the conversation it belongs to; 0: of none
    deployment: str = ""
    usage: Usage = NO_USAGE
    committed: bool = False  # content has been sent: no attempt may start over
    resumable: bool = False  # what was sent could be continued by another engine
    hedged: bool = False
    pieces: int = 0  # attempts that have brought content
    first_token: float = 0.0  # seconds since `started`; 0 within one tick of the clock
    outcome: Outcome = "refused"
    status: int = 200
    error: str = ""
    account: Account | None = None  # where requests are billed
    reserved: tuple[Reservation, ...] = ()  # whose slots it may use
    may_share: bool = True  # it may use slots that everybody shares
    over: Over = ""  # why it uses them although its team has reserved some
    pool: str = SERVERLESS  # whose slot serves it; as the client was told, once it was
    told: bool = False  # the answer's head has been made

    @property
    def created(self) -> int:
        """Seconds since the epoch, as answers show them."""
        return int(self.started_at)

    @property
    def answer_id(self) -> str:
        """The id that the client sees."""
        return self.operation.id_prefix + self.id

    def headers(self, fixed: HeaderLines) -> HeaderLines:
        """Header lines of the answer: `fixed`, whose slot serves it, and how to ask after it.

        The pool stays what it is from now on, whatever slots the answer goes on with.
        """
        self.told = True
        own = (
            f"x-request-id: {self.id}\r\nx-generation-id: {self.answer_id}\r\n"
            f"x-prime-pool: {self.pool}\r\n"
        )
        if self.went_over:
            own += f"x-prime-over: {self.over}\r\n"
        return HeaderLines(fixed + own.encode())

    @property
    def priority(self) -> Priority:
        return Priority.BATCH if self.operation.flex else Priority.INTERACTIVE

    @property
    def went_over(self) -> Over:
        """Why none of the team's reservations serves it; empty where one does, or there is none."""
        return self.over if self.pool == SERVERLESS else ""

    def generation(self, now: float) -> Generation:
        """The account of it, `now` being the event loop's clock."""
        operation = self.operation
        return Generation(
            id=self.id,
            tenant=self.key.tenant,
            key_id=self.key.key_id,
            route=operation.route,
            model=self.model,
            deployment=self.deployment,
            streamed=operation.stream,
            outcome=self.outcome,
            status=self.status,
            error=self.error,
            usage=self.usage,
            started_at=self.started_at,
            first_token_seconds=self.first_token,
            duration_seconds=now - self.started,
            continuations=self.pieces - 1 if self.pieces > 1 else 0,
            hedged=self.hedged,
            pool=self.pool,
            over=self.went_over,
        )
