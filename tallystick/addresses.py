"""Where Postgres is, for each role: as set, or derived from one address, or the embedded server's."""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from tallystick.roles import ANALYST, API, OPERATOR, ROLES, ROLLUP, WRITER
from tallystick.settings import Settings

_SCHEMES: Final = ("postgresql", "postgres", "postgresql+psycopg")


class BadAddress(ValueError):
    """An address in the settings cannot be read; the message has no secret."""


class NoAddress(LookupError):
    """No address is set for a role, and none can be derived."""


@dataclass(frozen=True)
class Addresses:
    """The address of the database for each role."""

    owner: str | None = field(repr=False)
    """As somebody who may make roles: only `migrate` logs in with it."""
    url_for: Callable[[str], str] = field(repr=False)
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What `migrate` sets, so that the addresses of the roles open."""


@contextmanager
def addresses(settings: Settings) -> Iterator[Addresses]:
    """Give the addresses; with none set, those of the embedded Postgres, which is started if nobody runs it."""
    found = configured(settings)
    if found is not None:
        yield found
        return
    # Costs a quarter of a second, which nobody pays who has a Postgres of his own.
    from tallystick.embedded import running_or_started

    with running_or_started(settings.home) as server:
        yield Addresses(server.url, server.url_for)


def configured(settings: Settings) -> Addresses | None:
    """Return the addresses as set, each explicit one first, the others from `database_url`; None where nothing is set.

    From `database_url` another role gets the same server and a password of its own, made from that address's password:
    so one setting is enough, and still no part holds the password of the one that may make roles.
    """
    explicit = {
        role: _Url.parse(f"TALLYSTICK_{name.upper()}", secret.get_secret_value())
        for role, name, secret in (
            (WRITER, "writer_url", settings.writer_url),
            (API, "api_url", settings.api_url),
            (OPERATOR, "operator_url", settings.operator_url),
            (ANALYST, "analyst_url", settings.analyst_url),
            (ROLLUP, "rollup_url", settings.rollup_url),
        )
        if secret is not None
    }
    owner = None
    if settings.database_url is not None:
        owner = _Url.parse("TALLYSTICK_DATABASE_URL", settings.database_url.get_secret_value())
    if owner is None and not explicit:
        return None

    def url_for(role: str) -> str:
        url = explicit.get(role)
        if url is not None:
            return url.text
        if owner is None:
            name = role.removeprefix("tallystick_")
            raise NoAddress(
                f"no address is set for {role}: set TALLYSTICK_{name.upper()}_URL or TALLYSTICK_DATABASE_URL"
            )
        return owner.become(role).text

    passwords = {}
    if owner is not None:
        for role in ROLES:
            # An explicit address names its own login, which may be another role that the operator made.
            url = explicit.get(role) or owner.become(role)
            if url.user == role and url.password is not None:
                passwords[role] = url.password
    return Addresses(owner.text if owner else None, url_for, passwords)


def libpq_url(url: str) -> str:
    """Return an address without SQLAlchemy's name of the driver."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


@dataclass(frozen=True)
class _Url:
    """A Postgres URL in parts that we look at; the rest stays as it was written."""

    user: str
    password: str | None = field(repr=False)
    rest: str
    """From the host on."""

    @classmethod
    def parse(cls, setting: str, text: str) -> "_Url":
        scheme, separator, rest = text.strip().partition("://")
        if not separator or scheme not in _SCHEMES:
            raise BadAddress(f"{setting} is no address such as postgresql://user:password@host:5432/database")
        authority, slash, path = rest.partition("/")
        user_info, _, hosts = authority.rpartition("@")
        user, colon, password = user_info.partition(":")
        return cls(unquote(user), unquote(password) if colon else None, f"{hosts}{slash}{path}")

    @property
    def text(self) -> str:
        user = quote(self.user, safe="")
        password = "" if self.password is None else f":{quote(self.password, safe='')}"
        at = "@" if user or password else ""
        return f"postgresql://{user}{password}{at}{self.rest}"

    def become(self, role: str) -> "_Url":
        """Return the address of another role on the same server."""
        password = None
        if self.password:
            password = hmac.new(self.password.encode(), role.encode(), hashlib.sha256).hexdigest()
        return _Url(role, password, self.rest)
