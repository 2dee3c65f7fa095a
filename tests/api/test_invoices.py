"""Invoices over HTTP: an operator's key issues, voids and gives back; a tenant's key reads its own."""

from typing import Any

import pytest

from billing.exports.csv_text import to_csv
from billing.exports.json_text import to_json
from billing.exports.pdf import to_pdf
from billing.store import find_document
from ledger.database import connect
from tests.api.support import make_key, problem, site
from tests.api.test_parties import Asking
from tests.billing.support import JANUARY, agree, close, dollars
from tests.factories import GATEWAY
from tests.support.ledger import Ledger

# The price of the world's model is 2.00 a million tokens in: an event of "1" dollar's tokens comes to 2.00.


@pytest.fixture
async def closed(world: Ledger) -> Ledger:
    """t-alpha has 2 x 3 + 2 x 4 = 14.00 in January, which is closed."""
    gateway = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        await here.send(dollars("a", "3"), token=gateway)
        await here.send(dollars("b", "4", feature="search"), token=gateway)
    async with await connect(world.database.url_for("tallystick_operator")) as operator:
        await agree(operator, "t-alpha", "t-beta", tax_rate="0.10")
        await close(operator, JANUARY)
    return world


async def test_a_month_from_draft_to_credit_note(closed: Ledger) -> None:
    token = await make_key(closed, "invoices:write", "invoices:read")
    own, others = await make_key(closed, tenant_id="t-alpha"), await make_key(closed, tenant_id="t-beta")
    async with site(closed) as here:
        ask, alpha, beta = Asking(here, token), Asking(here, own), Asking(here, others)
        drafted = (await ask.get("/v1/invoices/t-alpha/2026-01")).json()
        (draft,) = drafted["drafts"]
        assert (draft["document"]["total"], draft["refusals"], drafted["live"]) == ("15.40", [], {})
        digest = draft["document"]["digest"]
        stale = await ask.post("/v1/invoices:issue", tenant_id="t-alpha", month="2026-01", digests={"USD": "0" * 64})
        assert (stale.status_code, problem(stale)) == (409, "act-refused")
        for result in ("issued", "issued_before"):
            made = await ask.post("/v1/invoices:issue", tenant_id="t-alpha", month="2026-01", digests={"USD": digest})
            (outcome,) = made.json()["outcomes"]
            assert (outcome["result"], outcome["number"], outcome["total"]) == (result, "NW-000001", "15.40")
        shown = (await alpha.get("/v1/documents/NW-000001")).json()["document"]
        assert (shown["state"], shown["digest"], len(shown["lines"])) == ("issued", digest, 2)
        listed = (await alpha.get("/v1/tenants/t-alpha/documents", month="2026-01")).json()["documents"]
        assert [(each["number"], each["total"]) for each in listed] == [("NW-000001", "15.40")]
        assert problem(await beta.get("/v1/documents/NW-000001")) == "unknown-name"
        assert problem(await beta.get("/v1/tenants/t-alpha/documents")) == "tenant-not-found"
        assert problem(await alpha.get("/v1/invoices/t-alpha/2026-01")) == "scope-missing"
        back = {"invoice": "NW-000001", "lines": [{"line_no": 1}], "reason": "sorry"}
        preview = (await ask.post("/v1/credit-notes:commercial", **back)).json()
        assert (preview["outcome"], preview["document"]["total"]) == ("preview", "6.60")
        assert (preview["document"]["state"], preview["document"]["number"]) == ("draft", None)
        noted = (await ask.post("/v1/credit-notes:commercial", **back, commit=True)).json()
        assert (noted["outcome"], noted["document"]["number"]) == ("issued", "NW-C-000001")
        refused = await ask.post("/v1/invoices:void", invoice="NW-000001", reason="x")
        assert (problem(refused), "NW-C-000001 corrects it" in refused.json()["detail"]) == ("act-refused", True)
        usage = await ask.post("/v1/credit-notes:usage", invoice="NW-000001", reason="x", commit=True)
        assert "nothing corrects the usage" in usage.json()["detail"]
    assert closed.rows("select act, actor from ledger.acts where act ~ 'issue' order by act_id") == [
        ("invoices.issue", f"key {token[: token.rindex('_')]}"),
        ("credit-notes.issue", f"key {token[: token.rindex('_')]}"),
    ]


async def test_a_document_is_a_file_of_any_format(closed: Ledger) -> None:
    """The bytes of the command; a tenant's key has its own."""
    token = await make_key(closed, "invoices:write", "invoices:read")
    own, others = await make_key(closed, tenant_id="t-alpha"), await make_key(closed, tenant_id="t-beta")
    async with site(closed) as here:
        ask, alpha, beta = Asking(here, token), Asking(here, own), Asking(here, others)
        await ask.post("/v1/invoices:issue", tenant_id="t-alpha", month="2026-01")
        async with await connect(closed.database.url_for("tallystick_operator")) as operator:
            document = await find_document(operator, "NW-000001")
        file = f"/v1/documents/{document.document_id}/file"
        pdf = await alpha.get(file)
        assert (pdf.status_code, pdf.content) == (200, to_pdf(document))
        assert pdf.headers["content-type"] == "application/pdf"
        assert pdf.headers["content-disposition"] == "attachment; filename*=UTF-8''NW-000001.pdf"
        assert pdf.headers["cache-control"] == "private, no-cache"
        assert (await alpha.get(file, exact="true")).content == to_pdf(document, with_exact=True)
        by_number = "/v1/documents/NW-000001/file"
        assert (await alpha.get(by_number, format="csv")).text == to_csv([document])
        assert (await alpha.get(by_number, format="json")).text == to_json(document)
        focus = await alpha.get(by_number, format="focus")
        assert (problem(focus), "run `tallystick rollup`" in focus.json()["detail"]) == ("act-refused", True)
        assert problem(await beta.get(by_number)) == "unknown-name"
        for wrong in ({"format": "xml"}, {"exact": "1"}, {"format": "csv", "exact": "true"}):
            refused = await alpha.get(by_number, **wrong)
            assert problem(refused) == "invalid-request"
            assert refused.json()["errors"][0]["name"] == list(wrong)[-1]


async def test_a_void_may_wait_for_a_second_person(closed: Ledger) -> None:
    token = await make_key(closed, "invoices:write")
    async with site(closed, second_person=frozenset({"invoices.void"})) as here:
        ask = Asking(here, token)
        await ask.post("/v1/invoices:issue", tenant_id="t-alpha", month="2026-01")
        waiting = (await ask.post("/v1/invoices:void", invoice="NW-000001", reason="a wrong address")).json()
        assert waiting["outcome"] == "awaiting"
        assert waiting["approval_id"] == closed.value("select approval_id from ledger.approvals")
    async with site(closed) as here:
        done = (
            await Asking(here, token).post("/v1/invoices:void", invoice="NW-000001", reason="a wrong address")
        ).json()
        assert (done["outcome"], done["number"]) == ("voided", "NW-000001")


async def test_what_is_parked_is_listed(closed: Ledger) -> None:
    token = await make_key(closed, "invoices:write")
    async with site(closed) as here:
        ask = Asking(here, token)
        (outcome,) = (await ask.post("/v1/invoices:issue", tenant_id="t-beta", month="2026-01")).json()["outcomes"]
        assert (outcome["result"], outcome["reasons"]) == ("parked", ["period 2026-01 is open: close it first"])
        waiting = (await ask.get("/v1/invoices/parked", month="2026-01")).json()["waiting"]
        assert [each["tenant_id"] for each in waiting] == ["t-beta"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("invoices:issue", {"tenant_id": "t-alpha", "month": "2026-1"}, 422, "invalid-request"),
        ("invoices:issue", {"tenant_id": "nobody", "month": "2026-01"}, 404, "unknown-name"),
        ("invoices:issue", {"tenant_id": "t-alpha", "month": "2026-01", "accept_bounds": True}, 409, "act-refused"),
        ("invoices:void", {"invoice": "NW-9", "reason": "x"}, 404, "unknown-name"),
        ("credit-notes:commercial", {"invoice": "NW-9", "reason": "x"}, 422, "invalid-request"),
        ("credit-notes:commercial", {"invoice": "NW-9", "reason": "x", "amount": "-1"}, 422, "invalid-request"),
        ("credit-notes:commercial",
         {"invoice": "NW-9", "reason": "x", "lines": [{"line_no": 1}, {"line_no": 1}]}, 422, "invalid-request"),
        ("credit-notes:usage", {"invoice": "NW-9", "reason": "x"}, 404, "unknown-name"),
        ("invoices:issue", {"tenant_id": "t-alpha", "month": "0001-01"}, 422, "invalid-request"),
        ("invoices:issue", {"tenant_id": "t-\0", "month": "2026-01"}, 422, "invalid-request"),
        ("invoices:void", {"invoice": "NW-\0", "reason": "x"}, 422, "invalid-request"),
    ],
)  # fmt: skip
async def test_each_refusal_is_a_problem(
    closed: Ledger, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    token = await make_key(closed, "invoices:write")
    async with site(closed) as here:
        answer = await Asking(here, token).post(f"/v1/{path}", **body)
    assert (answer.status_code, problem(answer)) == (status, code)
