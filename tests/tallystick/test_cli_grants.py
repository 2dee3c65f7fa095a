"""Grants and webhooks by command: made, shown, revoked once; receivers added, tried, rotated and removed."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.tallystick.commands import Commands

CREATE = ("grants", "create", "--tenant", "acme", "--amount", "10.00", "--currency", "EUR")


def test_a_grant_is_made_once_shown_and_revoked(with_tenant: Commands) -> None:
    made = with_tenant.json(
        *CREATE, "--from", "2026-10-01", "--until", "2031-01-01", "--key", "order-1", "--reason", "bought"
    )
    grant_id = made["grant_id"]
    assert with_tenant.ok(*CREATE, "--until", "2031-01-01", "--key", "order-1").out == (
        f"was already created {grant_id}: 10.00\n"
    )
    shown = with_tenant.json("grants", "show", grant_id)
    assert (shown["effective_at"], shown["expires_at"]) == ("2026-09-30T22:00:00Z", "2030-12-31T23:00:00Z"), (
        "Berlin's days"
    )
    assert [(each["kind"], each["reason"]) for each in shown["movements"]] == [("granted", "bought")]
    table = with_tenant.ok("grants", "list", "--tenant", "acme").out
    assert "left 10.00 EUR; charged beyond grants 0 EUR" in table
    revoked = with_tenant.ok("grants", "revoke", grant_id, "--amount", "4", "--reason", "paid back").out
    assert revoked == f"revoked {grant_id}: -4\n"
    with_tenant.ok("grants", "adjust", grant_id, "--amount", "1", "--reason", "typed wrong")
    (balances,) = with_tenant.json("grants", "list", "--tenant", "acme")
    assert balances["left"] == "7.00"
    assert "granted" in with_tenant.ok("grants", "show", grant_id).out
    assert with_tenant.ok("grants", "expire").out == "0 expired grants booked, 0 prepaid limits moved\n"
    assert with_tenant("grants", "show", "gr_0").line == "there is no grant 'gr_0'"


def test_a_tenant_prepays_and_no_longer_does(with_tenant: Commands) -> None:
    with_tenant.ok(*CREATE)
    said = with_tenant.ok("grants", "prepay", "acme", "--reason", "contract").out
    assert said.startswith("tenant acme is prepaid: budget prepaid-")
    assert "which reservations are held to" in with_tenant.ok("grants", "list", "--tenant", "acme").out
    budget_id = said.rpartition(" ")[2].strip()
    assert with_tenant.json("budgets", "show", budget_id)["limit_amount"] == "10.00"
    assert with_tenant("grants", "prepay", "acme", "--reason", "again").line == "tenant acme is prepaid already"
    assert "has ended" in with_tenant.ok("grants", "postpay", "acme", "--reason", "invoiced").out


@pytest.fixture
def address() -> Iterator[str]:
    """A receiver that takes everything at /ok and nothing elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204 if self.path == "/ok" else 500)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_receiver_is_added_tried_rotated_and_removed(
    with_tenant: Commands, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_tenant("webhooks", "add", f"{address}/ok").line == "the address must begin with https://"
    monkeypatch.setenv("TALLYSTICK_WEBHOOKS_ALLOW_PRIVATE", "true")
    added = with_tenant.json("webhooks", "add", f"{address}/ok", "--tenant", "acme")
    assert added["secret"].startswith("whsec_")
    endpoint = added["endpoint_id"]
    assert with_tenant.ok("webhooks", "test", endpoint).out.endswith(": answered 204\n")
    (delivery,) = with_tenant.json("webhooks", "deliveries", "--endpoint", endpoint)
    assert (delivery["state"], delivery["kind"]) == ("delivered", "webhook.test")
    assert added["secret"] not in with_tenant.ok("webhooks", "list").out
    rotated = with_tenant.json("webhooks", "rotate", endpoint, "--overlap-hours", "1")
    assert rotated["secret"] not in ("", added["secret"])
    resent = with_tenant.ok("webhooks", "resend", f"msg_{delivery['message_id']}").out
    assert resent == "to be sent to 1 endpoint again\n"
    with_tenant.ok("webhooks", "remove", endpoint, "--reason", "moved")
    assert with_tenant.ok("webhooks", "list").out == "no endpoints\n"
    assert with_tenant("webhooks", "test", endpoint).line == f"there is no endpoint {endpoint!r}"


def test_a_receiver_that_fails_is_named_in_one_line(
    with_tenant: Commands, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_WEBHOOKS_ALLOW_PRIVATE", "true")
    endpoint = with_tenant.json("webhooks", "add", f"{address}/broken")["endpoint_id"]
    assert with_tenant("webhooks", "test", endpoint).line == f"endpoint {endpoint} did not take it: answered 500"
    assert with_tenant("webhooks", "deliveries", "--state", "lost").line.startswith("state 'lost' is unknown")
    assert with_tenant("webhooks", "enable", endpoint).line == f"endpoint {endpoint} is not disabled"
