"""Webhooks: endpoints and their secrets, and the delivery of what the outbox holds, signed by Standard Webhooks.

A message is sent until it is taken: at least once, with the same `webhook-id` each time, in no promised order.
"""

import asyncio
import base64
import ipaddress
import random
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

import httpx
import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb
from standardwebhooks import Webhook

from ledger import failpoints
from ledger.database import Connection, connect, record_act
from ledger.errors import Unknown
from quotas.errors import WebhookRefused

KINDS: Final = (
    "budget.threshold_reached", "budget.exhausted", "budget.overrun", "reservation.waiting", "webhook.disabled", "webhook.test",
)  # fmt: skip
ENDPOINTS_MAX: Final = 20
"""Of one tenant, or of the operator: each fact is a row for each of them."""
ROTATION_HOURS: Final = 24
"""How long an old secret still signs beside the new one, unless the operator says otherwise."""
KEPT_DAYS: Final = 90

_AT_ONCE: Final = 16
_OF_ONE_ENDPOINT: Final = 8
_LEASE: Final = timedelta(seconds=60)
"""How long a delivery belongs to who claimed it: longer than sending can take. After a crash it is sent again."""
_SEND_SECONDS: Final = 15
_CONNECT_SECONDS: Final = 5
_FIRST_WAIT: Final = timedelta(seconds=5)
_LONGEST_WAIT: Final = timedelta(hours=6)
_STEPS_MAX: Final = 10
"""Of doubling twice: far above the longest wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How messages are sent."""

    age_hours: int = 72
    """A message that nobody took for so long is given up, and an endpoint that failed for so long is disabled."""
    allow_private: bool = False
    """Whether messages may go to private addresses, and without TLS: for tests, and networks of one's own."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A receiver as it stands, without its secrets."""

    endpoint_id: str
    tenant_id: str | None
    url: str
    kinds: Sequence[str]
    created_at: datetime
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None


@dataclass(frozen=True, slots=True)
class Added:
    """An endpoint with the secret that its messages are signed with: told once."""

    endpoint_id: str
    secret: str


# --- Endpoints ---------------------------------------------------------------------------------------------------------


async def add_endpoint(
    connection: Connection,
    actor: str,
    url: str,
    rules: Rules,
    *,
    tenant_id: str | None = None,
    kinds: Sequence[str] = (),
    reason: str | None = None,
) -> Added:
    """Add a receiver; it hears of what happens from now on.

    Raises WebhookRefused or Unknown for the first rule that is broken.
    """
    check_url(url, rules)
    unknown = next((kind for kind in kinds if kind not in KINDS), None)
    if unknown is not None:
        raise WebhookRefused(f"kind {unknown!r} is unknown; it is one of {', '.join(KINDS)}")
    async with connection.transaction():
        if tenant_id is not None:
            # Locked, so that two who add at once count each other.
            cursor = await connection.execute("select from ledger.tenants where tenant_id = %s for update", [tenant_id])
            if await cursor.fetchone() is None:
                raise Unknown("tenant", tenant_id)
        cursor = await connection.execute(
            "select count(*), count(*) filter (where url = %(url)s) from quotas.webhook_endpoints"
            " where tenant_id is not distinct from %(tenant)s and removed_at is null",
            {"tenant": tenant_id, "url": url},
        )
        row = await cursor.fetchone()
        assert row is not None
        if row[1]:
            raise WebhookRefused("there is an endpoint with this address already")
        if row[0] >= ENDPOINTS_MAX:
            raise WebhookRefused(f"there are {ENDPOINTS_MAX} endpoints already, which is the most")
        endpoint_id = f"we_{secrets.token_hex(6)}"
        await connection.execute(
            "insert into quotas.webhook_endpoints (endpoint_id, tenant_id, url, kinds) values (%s, %s, %s, %s)",
            [endpoint_id, tenant_id, url, list(dict.fromkeys(kinds))],
        )
        secret = await _add_secret(connection, endpoint_id)
        detail = {"endpoint_id": endpoint_id, "tenant_id": tenant_id, "url": url, "kinds": list(kinds)}
        await record_act(connection, actor, "webhooks.add", detail, reason)
    return Added(endpoint_id, secret)


async def _add_secret(connection: Connection, endpoint_id: str) -> str:
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    await connection.execute(
        "insert into quotas.webhook_secrets (endpoint_id, secret) values (%s, %s)", [endpoint_id, secret]
    )
    return secret


async def rotate_secret(
    connection: Connection,
    actor: str,
    endpoint_id: str,
    *,
    overlap_hours: int = ROTATION_HOURS,
    reason: str | None = None,
) -> str:
    """Give an endpoint a new secret; for a while messages are signed with both, so that the receiver can change in between."""
    if not 0 <= overlap_hours <= 24 * 30:
        raise WebhookRefused(f"the old secret signs on for 0 to 720 hours, not {overlap_hours}")
    async with connection.transaction():
        await _lock(connection, endpoint_id)
        await connection.execute(
            "update quotas.webhook_secrets set expires_at = case"
            " when expires_at is null then clock_timestamp() + make_interval(hours => %(hours)s)"
            # Two at a time: whoever rotates again is done with the one before.
            " else least(expires_at, clock_timestamp()) end where endpoint_id = %(endpoint)s",
            {"endpoint": endpoint_id, "hours": overlap_hours},
        )
        secret = await _add_secret(connection, endpoint_id)
        detail = {"endpoint_id": endpoint_id, "overlap_hours": overlap_hours}
        await record_act(connection, actor, "webhooks.rotate", detail, reason)
    return secret


async def remove_endpoint(connection: Connection, actor: str, endpoint_id: str, *, reason: str | None = None) -> None:
    """Remove a receiver: nothing more is sent, its secrets sign no more, and what waits for it is given up."""
    async with connection.transaction():
        await _lock(connection, endpoint_id)
        await connection.execute(
            "update quotas.webhook_endpoints set removed_at = clock_timestamp() where endpoint_id = %s", [endpoint_id]
        )
        await connection.execute(
            "update quotas.webhook_secrets set secret = '', expires_at = clock_timestamp() where endpoint_id = %s",
            [endpoint_id],
        )
        await connection.execute(
            "update quotas.deliveries set state = 'failed', last_error = 'endpoint removed'"
            " where endpoint_id = %s and state = 'pending'",
            [endpoint_id],
        )
        await record_act(connection, actor, "webhooks.remove", {"endpoint_id": endpoint_id}, reason)


async def enable_endpoint(connection: Connection, actor: str, endpoint_id: str, *, reason: str | None = None) -> None:
    """Send to a disabled endpoint again, beginning with what waits for it."""
    async with connection.transaction():
        await _lock(connection, endpoint_id)
        cursor = await connection.execute(
            "update quotas.webhook_endpoints set disabled_at = null, disabled_reason = null, failing_since = null"
            " where endpoint_id = %s and disabled_at is not null",
            [endpoint_id],
        )
        if not cursor.rowcount:
            raise WebhookRefused(f"endpoint {endpoint_id} is not disabled")
        await connection.execute(
            "update quotas.deliveries set next_at = clock_timestamp() where endpoint_id = %s and state = 'pending'",
            [endpoint_id],
        )
        await record_act(connection, actor, "webhooks.enable", {"endpoint_id": endpoint_id}, reason)


async def list_endpoints(connection: Connection, *, tenant_id: str | None = None) -> list[Endpoint]:
    """List receivers, those of one tenant or all."""
    async with connection.cursor(row_factory=class_row(Endpoint)) as cursor:
        await cursor.execute(
            "select endpoint_id, tenant_id, url, kinds, created_at, failing_since, disabled_at, disabled_reason"
            " from quotas.webhook_endpoints where removed_at is null and (%(tenant)s::text is null or tenant_id = %(tenant)s)"
            " order by tenant_id nulls first, created_at, endpoint_id",
            {"tenant": tenant_id},
        )
        return await cursor.fetchall()


async def find_endpoint(connection: Connection, endpoint_id: str) -> None:
    """Raise Unknown where there never was such a receiver; one that was removed still has its deliveries."""
    cursor = await connection.execute("select from quotas.webhook_endpoints where endpoint_id = %s", [endpoint_id])
    if await cursor.fetchone() is None:
        raise Unknown("endpoint", endpoint_id)


async def _lock(connection: Connection, endpoint_id: str) -> None:
    cursor = await connection.execute(
        "select from quotas.webhook_endpoints where endpoint_id = %s and removed_at is null for update", [endpoint_id]
    )
    if await cursor.fetchone() is None:
        raise Unknown("endpoint", endpoint_id)


def check_url(url: str, rules: Rules) -> SplitResult:
    """Refuse an address that nothing may be sent to; which addresses its name stands for is looked at when sending."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise WebhookRefused("the address is no URL") from None
    if len(url) > 2000 or not url.isprintable() or " " in url:
        raise WebhookRefused("the address is no printable URL of at most 2000 characters")
    if parts.scheme != "https" and not (rules.allow_private and parts.scheme == "http"):
        raise WebhookRefused("the address must begin with https://")
    if not parts.hostname:
        raise WebhookRefused("the address names no host")
    if parts.username is not None or parts.password is not None:
        raise WebhookRefused("the address must not hold a name or password; messages are signed instead")
    if parts.fragment:
        raise WebhookRefused("the address must not have a fragment")
    if port == 0:
        raise WebhookRefused("port 0 is no port")
    with suppress(ValueError):
        if not rules.allow_private and not _is_public(ipaddress.ip_address(parts.hostname)):
            raise WebhookRefused("the address is private")
    return parts


_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Say whether an address, and one that it embeds, is reachable by everybody and so not a way into our own network."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if embedded is None and address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None and not _is_public(embedded):
            return False
    return address.is_global and not address.is_multicast


# --- What waits, and what became of it ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to an endpoint."""

    message_id: str
    endpoint_id: str
    kind: str
    tenant_id: str | None
    state: str
    attempts: int
    created_at: datetime
    next_at: datetime | None
    last_at: datetime | None
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None


async def list_deliveries(
    connection: Connection,
    *,
    endpoint_id: str | None = None,
    state: str | None = None,
    limit: int = 50,
) -> list[Delivery]:
    """List deliveries, the newest message first."""
    async with connection.cursor(row_factory=class_row(Delivery)) as cursor:
        await cursor.execute(
            "select d.message_id::text, d.endpoint_id, o.kind, o.tenant_id, d.state, d.attempts, o.created_at,"
            " case when d.state = 'pending' then d.next_at end as next_at, d.last_at, d.last_status, d.last_error,"
            " d.delivered_at from quotas.deliveries as d join quotas.outbox as o using (message_id)"
            " where (%(endpoint)s::text is null or d.endpoint_id = %(endpoint)s)"
            " and (%(state)s::text is null or d.state = %(state)s)"
            " order by o.created_at desc, d.message_id, d.endpoint_id limit %(limit)s",
            {"endpoint": endpoint_id, "state": state, "limit": limit},
        )
        return await cursor.fetchall()


async def resend(
    connection: Connection, actor: str, message_id: str, *, endpoint_id: str | None = None, reason: str | None = None
) -> int:
    """Send a message again, whatever became of it, under the id that it had; return to how many endpoints."""
    try:
        key = str(UUID(message_id.removeprefix("msg_")))
    except ValueError:
        raise Unknown("message", message_id) from None
    async with connection.transaction():
        cursor = await connection.execute(
            "update quotas.deliveries as d set state = 'pending', next_at = clock_timestamp(), delivered_at = null"
            " from quotas.webhook_endpoints as e where d.message_id = %(message)s and e.endpoint_id = d.endpoint_id"
            " and e.removed_at is null and (%(endpoint)s::text is null or d.endpoint_id = %(endpoint)s)",
            {"message": key, "endpoint": endpoint_id},
        )
        if not cursor.rowcount:
            raise Unknown("message", message_id)
        detail = {"message_id": key, "endpoint_id": endpoint_id}
        await record_act(connection, actor, "webhooks.resend", detail, reason)
    return cursor.rowcount


async def send_test(connection: Connection, actor: str, endpoint_id: str) -> str:
    """Put a message for one endpoint into the outbox, whatever kinds it listens to; return its id."""
    async with connection.transaction():
        await _lock(connection, endpoint_id)
        message_id = await _put(
            connection, "webhook.test", f"test {secrets.token_hex(8)}", {"endpoint_id": endpoint_id}, [endpoint_id]
        )
        await record_act(connection, actor, "webhooks.test", {"endpoint_id": endpoint_id})
    return message_id


async def _put(connection: Connection, kind: str, fact: str, data: dict[str, Any], endpoint_ids: Sequence[str]) -> str:
    now = datetime.now(UTC)
    payload = {"type": kind, "version": 1, "timestamp": now.isoformat().replace("+00:00", "Z"), "data": data}
    cursor = await connection.execute(
        "with written as (insert into quotas.outbox (message_id, fact, kind, payload)"
        " values (gen_random_uuid(), %(fact)s, %(kind)s, %(payload)s) returning message_id),"
        " sent as (insert into quotas.deliveries (message_id, endpoint_id)"
        " select w.message_id, e from written as w cross join unnest(%(endpoints)s::text[]) as e)"
        " select message_id::text from written",
        {"fact": fact, "kind": kind, "payload": Jsonb(payload), "endpoints": list(endpoint_ids)},
    )
    row = await cursor.fetchone()
    assert row is not None
    return str(row[0])


# --- Delivery ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """What one round did."""

    delivered: int = 0
    failed: int = 0
    """Attempts that failed; most of them are tried again."""
    given_up: int = 0
    disabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Claimed:
    message_id: str
    endpoint_id: str
    url: str
    body: str
    attempts: int
    created_at: datetime
    secrets: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int | None
    error: str | None
    retry_after: int | None = None

    @property
    def is_taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


async def deliver_due(url: str, rules: Rules, *, only: str | None = None) -> Sent:
    """Send what is due, round by round, until nothing is; `only` names one message.

    `url` logs in as tallystick_operator. Several may deliver at once: each takes what no other has.
    """
    delivered = failed = given_up = 0
    disabled: list[str] = []
    limits = httpx.Limits(max_connections=_AT_ONCE, max_keepalive_connections=0)
    async with (
        await connect(url, connect_timeout=10) as connection,
        # Nothing of the environment: a proxy named there would see what is meant for a tenant.
        httpx.AsyncClient(
            timeout=httpx.Timeout(_SEND_SECONDS, connect=_CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
            limits=limits,
        ) as client,
    ):
        await _tell_of_waiting(connection)
        gate = asyncio.Semaphore(_AT_ONCE)
        while True:
            claimed = await _claim(connection, only)
            if not claimed:
                break

            async def send(one: _Claimed) -> _Answer:
                async with gate:
                    return await _send(client, one, rules)

            answers = await asyncio.gather(*(send(one) for one in claimed))
            failpoints.hit("outbox.before_mark")
            for one, answer in zip(claimed, answers, strict=True):
                marked = await _mark(connection, one, answer, rules)
                delivered += answer.is_taken
                failed += not answer.is_taken
                given_up += marked.given_up
                disabled += marked.disabled
        await _forget(connection)
    return Sent(delivered, failed, given_up, tuple(disabled))


async def _claim(connection: Connection, only: str | None) -> list[_Claimed]:
    """Take deliveries that are due for the length of a lease, a few of each endpoint, so that one that hangs stops no other."""
    async with connection.transaction(), connection.cursor(row_factory=class_row(_Claimed)) as cursor:
        await cursor.execute(
            """
            with due as materialized (
                select d.message_id, d.endpoint_id, e.url
                from quotas.webhook_endpoints as e
                cross join lateral (
                    select d.message_id, d.endpoint_id
                    from quotas.deliveries as d
                    where
                        d.endpoint_id = e.endpoint_id
                        and d.state = 'pending'
                        and d.next_at <= clock_timestamp()
                        and (%(only)s::uuid is null or d.message_id = %(only)s::uuid)
                    order by d.next_at
                    limit %(of_one)s
                    for update skip locked
                ) as d
                where e.removed_at is null and e.disabled_at is null
            ),

            taken as (
                update quotas.deliveries as d
                set attempts = d.attempts + 1, last_at = clock_timestamp(), next_at = clock_timestamp() + %(lease)s
                from due
                where d.message_id = due.message_id and d.endpoint_id = due.endpoint_id
                returning d.message_id, d.endpoint_id, d.attempts
            )

            select
                t.message_id::text,
                t.endpoint_id,
                due.url,
                o.payload::text as body,
                t.attempts,
                o.created_at,
                array(
                    select s.secret
                    from quotas.webhook_secrets as s
                    where s.endpoint_id = t.endpoint_id and (s.expires_at is null or s.expires_at > clock_timestamp())
                    order by s.secret_id desc
                ) as secrets
            from taken as t
            join due using (message_id, endpoint_id)
            join quotas.outbox as o using (message_id)
            order by o.created_at
            """,
            {"only": only, "of_one": _OF_ONE_ENDPOINT, "lease": _LEASE},
        )
        return await cursor.fetchall()


async def _send(client: httpx.AsyncClient, one: _Claimed, rules: Rules) -> _Answer:
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            parts = check_url(one.url, rules)
            address = await _resolve(parts, rules)
            return await _post(client, parts, address, one)
    except TimeoutError:
        return _Answer(None, "timed out")
    except WebhookRefused as error:
        return _Answer(None, str(error))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        # The class alone: a message of the library may hold the address with what somebody put into it.
        return _Answer(None, _words(type(error).__name__))


async def _resolve(parts: SplitResult, rules: Rules) -> str:
    """Return the address to connect to, after a look at all that the name stands for.

    We connect to this one and ask no second time: a name could stand for another address by then.
    """
    assert parts.hostname is not None
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError:
        raise WebhookRefused("the host has no address") from None
    addresses = [str(each[4][0]).partition("%")[0] for each in found]
    if not rules.allow_private and not all(_is_public(ipaddress.ip_address(address)) for address in addresses):
        raise WebhookRefused("the address is private")
    return addresses[0]


async def _post(client: httpx.AsyncClient, parts: SplitResult, address: str, one: _Claimed) -> _Answer:
    message_id = f"msg_{one.message_id}"
    at = datetime.now(UTC)
    signatures = " ".join(Webhook(secret).sign(message_id, at, one.body) for secret in one.secrets)
    assert parts.hostname is not None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    numeric = f"[{address}]" if ":" in address else address
    port = "" if parts.port is None else f":{parts.port}"
    target = parts._replace(netloc=f"{numeric}{port}").geturl()
    request = client.build_request(
        "POST",
        target,
        content=one.body.encode(),
        headers={
            "host": f"{host}{port}",
            "content-type": "application/json",
            "user-agent": "tallystick-webhooks/1",
            "webhook-id": message_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": signatures,
        },
        # The certificate must be the name's, though we connect by number.
        extensions={"sni_hostname": parts.hostname},
    )
    # The answer's body is not read: nothing of it is kept, and it may have no end.
    response = await client.send(request, stream=True)
    await response.aclose()
    status = response.status_code
    if 200 <= status < 300:
        return _Answer(status, None)
    if 300 <= status < 400:
        return _Answer(status, "redirects are not followed")
    return _Answer(status, f"answered {status}", _retry_after(response.headers.get("retry-after")))


def _retry_after(text: str | None) -> int | None:
    return None if text is None or not text.isascii() or not text.isdecimal() or len(text) > 6 else int(text)


def _words(name: str) -> str:
    """Return the name of an error in words: ConnectTimeout is connect timeout."""
    return "".join(f" {mark.lower()}" if mark.isupper() else mark for mark in name).strip()


async def _mark(connection: Connection, one: _Claimed, answer: _Answer, rules: Rules) -> Sent:
    """Write down what became of an attempt; decide when to try again, to give up, and to disable the endpoint."""
    async with connection.transaction():
        if answer.is_taken:
            await connection.execute(
                "update quotas.deliveries set state = 'delivered', delivered_at = clock_timestamp(), last_status = %s,"
                " last_error = null where message_id = %s and endpoint_id = %s",
                [answer.status, one.message_id, one.endpoint_id],
            )
            await connection.execute(
                "update quotas.webhook_endpoints set failing_since = null"
                " where endpoint_id = %s and failing_since is not null",
                [one.endpoint_id],
            )
            return Sent()
        wait = max(
            _wait(one.attempts), timedelta(seconds=min(answer.retry_after or 0, _LONGEST_WAIT // timedelta(seconds=1)))
        )
        cursor = await connection.execute(
            "update quotas.deliveries as d set last_status = %(status)s, last_error = %(error)s,"
            " state = case when o.created_at + make_interval(hours => %(age)s) < clock_timestamp() + %(wait)s"
            " then 'failed' else 'pending' end, next_at = clock_timestamp() + %(wait)s"
            " from quotas.outbox as o where o.message_id = d.message_id and d.message_id = %(message)s"
            " and d.endpoint_id = %(endpoint)s returning d.state",
            {
                "status": answer.status, "error": answer.error, "age": rules.age_hours, "wait": wait,
                "message": one.message_id, "endpoint": one.endpoint_id,
            },
        )  # fmt: skip
        row = await cursor.fetchone()
        cursor = await connection.execute(
            "update quotas.webhook_endpoints set failing_since = coalesce(failing_since, clock_timestamp())"
            " where endpoint_id = %s and removed_at is null and disabled_at is null"
            " returning failing_since + make_interval(hours => %s) <= clock_timestamp()",
            [one.endpoint_id, rules.age_hours],
        )
        failing = await cursor.fetchone()
        reason = None
        if answer.status == 410:
            reason = "the receiver answered 410 Gone"
        elif failing is not None and failing[0]:
            reason = f"nothing was taken for {rules.age_hours} hours"
        if reason is not None and failing is not None:
            await _disable(connection, one.endpoint_id, reason)
            return Sent(given_up=row is not None and row[0] == "failed", disabled=(one.endpoint_id,))
        return Sent(given_up=row is not None and row[0] == "failed")


def _wait(attempts: int) -> timedelta:
    """Return the pause after so many attempts: 5 s, 20 s, 80 s, ... up to six hours, each a fifth shorter or longer."""
    wait = min(_FIRST_WAIT * 4 ** min(attempts - 1, _STEPS_MAX), _LONGEST_WAIT)
    # Many that failed together must not come back together.
    return timedelta(milliseconds=wait // timedelta(seconds=1) * random.randint(800, 1200))


async def _disable(connection: Connection, endpoint_id: str, reason: str) -> None:
    await connection.execute(
        "update quotas.webhook_endpoints set disabled_at = clock_timestamp(), disabled_reason = %s where endpoint_id = %s",
        [reason, endpoint_id],
    )
    await record_act(connection, "outbox", "webhooks.disable", {"endpoint_id": endpoint_id}, reason)
    cursor = await connection.execute(
        "select o.endpoint_id from quotas.webhook_endpoints as o join quotas.webhook_endpoints as e on e.endpoint_id = %s"
        " where o.endpoint_id <> e.endpoint_id and (o.tenant_id is null or o.tenant_id = e.tenant_id)"
        " and (o.kinds = '{}' or 'webhook.disabled' = any (o.kinds)) and o.removed_at is null",
        [endpoint_id],
    )
    others = [row[0] for row in await cursor.fetchall()]
    if others:
        data = {"endpoint_id": endpoint_id, "reason": reason}
        await _put(connection, "webhook.disabled", f"disabled {endpoint_id} {secrets.token_hex(8)}", data, others)


async def _tell_of_waiting(connection: Connection) -> None:
    """Tell once of each reservation whose call ended more than a day ago and whose usage has not come."""
    await connection.execute(
        """
        select quotas.send_to_endpoints(
            array_agg(format('waiting %s %s', r.tenant_id, r.reservation_id)),
            array_agg('reservation.waiting'::text),
            array_agg(r.tenant_id),
            array_agg(
                jsonb_build_object(
                    'tenant_id', r.tenant_id, 'reservation_id', r.reservation_id, 'operation_id', r.operation_id,
                    'ended_at', r.ended_at
                )
            )
        )
        from (
            select w.*
            from quotas.reservations as w
            where
                w.state = 'awaiting_entry'
                and w.ended_at < clock_timestamp() - interval '1 day'
                and not exists (
                    select from quotas.outbox as o where o.fact = format('waiting %s %s', w.tenant_id, w.reservation_id)
                )
            limit 1000
        ) as r
        having count(*) > 0 and exists (select from quotas.webhook_endpoints where removed_at is null)
        """
    )


async def _forget(connection: Connection) -> None:
    """Forget messages that are older than anybody asks for; nothing that waits is as old."""
    with suppress(psycopg.errors.LockNotAvailable):
        await connection.execute(
            "delete from quotas.outbox where created_at < clock_timestamp() - make_interval(days => %s)"
            " and not exists (select from quotas.deliveries as d"
            " where d.message_id = outbox.message_id and d.state = 'pending')",
            [KEPT_DAYS],
        )
