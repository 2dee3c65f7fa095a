"""The document taken at its word: whatever it allows, and much that it does not, is answered without a fault of ours."""

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from ledger.api_keys import SCOPES
from tests.api.support import add_budget, bearer, make_key
from tests.api.test_server import served
from tests.support.ledger import Ledger
from tests.support.soak import SOAK, examples

CHECKS: list[Any] = [not_a_server_error, content_type_conformance, response_schema_conformance]
SETTINGS = hypothesis.settings(
    max_examples=examples(3),
    deadline=timedelta(seconds=30),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=SOAK == 1,
    database=None,
)


@pytest.mark.hypothesis
async def test_whatever_is_sent_is_answered_without_a_fault(world: Ledger) -> None:
    add_budget(world, unknown_price="admit", missing_estimate="admit")
    token = await make_key(world, *SCOPES)
    with served(world) as (_, address):
        await asyncio.to_thread(walk, address, token)
        await asyncio.to_thread(fuzz, address, token)
        counted = httpx.get(f"{address}/metrics").text
    # The walks came somewhere: calls were admitted, and ended.
    for route, status in (("", 201), ("/{reservation_id}:void", 200), ("/{reservation_id}:extend", 200)):
        assert f'route="/v1/reservations{route}",status="{status}"' in counted, route
    assert 'status="500"' not in counted
    assert world.budgets_that_differ() == []


def fuzz(address: str, token: str) -> None:
    """Try each operation with what its schemas allow and forbid, each by itself."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis.given(case=operation.as_strategy())
        @SETTINGS
        def one(case: Any) -> None:
            case.call_and_validate(headers=bearer(token), checks=CHECKS)

        one()
        tried += 1
    assert tried > 10


def walk(address: str, token: str) -> None:
    """Walk from calls that were admitted along the document's links to how they end, in whatever order."""
    whole = schemathesis.openapi.from_url(f"{address}/openapi.json")
    whole.config.generation.update(modes=[GenerationMode.POSITIVE])
    schema = whole.include(path_regex="^/v1/reservations($|/)")
    numbers = itertools.count()

    class Walk(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": bearer(token)}

        def before_call(self, case: Any) -> None:
            # A tenant that is there, and an ask that can be weighed, or no walk would come past its first step.
            if case.method == "GET":
                case.query = {"tenant_id": "t-alpha"}
            elif isinstance(case.body, dict):
                asked = {"ttl_seconds": case.body["ttl_seconds"]} if "ttl_seconds" in case.body else {}
                if case.operation.path == "/v1/reservations":
                    # Another one each time: what a run finds must not hang on the runs before.
                    asked["reservation_id"] = f"walk-{next(numbers)}"
                case.body = {"tenant_id": "t-alpha", **asked}

        def validate_response(self, response: Any, case: Any, **others: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    Walk.run(settings=hypothesis.settings(SETTINGS, max_examples=examples(30), stateful_step_count=8))
