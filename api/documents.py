"""The OpenAPI document: made from the types that read and write, one operation for each route.

FastAPI routes, and finds the operation of a route given as its `openapi_extra`; what it would say itself is left out, since it
knows our routes by functions that take a request.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from fastapi.routing import APIRoute
from msgspec import UNSET, Meta, Struct, UnsetType

from api.errors import MEDIA_TYPE, PROBLEMS, type_of
from ledger.api_keys import SCOPES, Scope
from quotas.asks import Tightest

_REF: Final = "#/components/schemas/{name}"

TEXT: Final = """
Usage events in; budgets, reservations and what they decide out.

**Once.** An event is known by (tenant, `source`, `id`): sending it again is answered `duplicate` and changes nothing, however
late. So every 503 and every lost answer is met by sending the same bytes again.

**Acknowledged means stored.** An answer comes after the commit. What cannot be posted is kept with its bytes and the reason.

**Amounts** are decimal text, exact and unrounded; never JSON floats. Instants are RFC 3339 in UTC; ends are exclusive.

**Keys** belong to one tenant, which then rules over the body, to one source, which speaks for its tenants, or to an operator.
Each has scopes, and a route names the one that it needs.

**Problems** are RFC 9457. Decide by `type`, which is also the address of a page that explains it; `/problems` lists them all.

**Requests** may carry an `X-Request-Id` of up to 128 plain characters; else one is made. It comes back in the header of that name, in
`request_id` of a problem, and stands in our log.
"""


class FieldRule(Struct):
    """A parameter or field, and the rule that it breaks."""

    name: str
    rule: str


class ProblemReply(Struct, omit_defaults=True):
    """RFC 9457."""

    type: Annotated[
        str, Meta(description="Stable: decide by this one. It is also the address of a page that explains it.")
    ]
    title: str
    status: int
    detail: Annotated[str | UnsetType, Meta(description="For a person.")] = UNSET
    request_id: Annotated[str | UnsetType, Meta(description="As in the header X-Request-Id.")] = UNSET
    errors: Annotated[list[FieldRule] | UnsetType, Meta(description="invalid-request: name and rule of each.")] = UNSET
    reference: Annotated[str | UnsetType, Meta(description="internal-error: names the line in our log.")] = UNSET
    checks: Annotated[dict[str, str] | UnsetType, Meta(description="not-ready: what failed and why.")] = UNSET
    scope: Annotated[str | UnsetType, Meta(description="scope-missing: the one that is needed.")] = UNSET
    reservation_id: Annotated[str | UnsetType, Meta(description="Of the ask that was refused.")] = UNSET
    state: Annotated[str | UnsetType, Meta(description="reservation-over: where it stands.")] = UNSET
    budget: Annotated[Tightest | UnsetType, Meta(description="budget-exhausted and the like: which.")] = UNSET
    retry_at: Annotated[
        datetime | UnsetType, Meta(description="budget-exhausted: when there is room, at the earliest.")
    ] = UNSET


@dataclass(frozen=True, slots=True)
class Room:
    """Routes that belong together, and what the document says of them."""

    router: APIRouter
    tag: str
    """Of all their operations."""
    about: str
    schemas: tuple[type, ...] = ()
    """The structs of their bodies and replies; what these hold is found by itself."""
    complete: Callable[[dict[str, Any]], None] | None = None
    """Given all schemas by name, says what the types cannot."""


def ref(name: str) -> dict[str, str]:
    """Return a reference to a schema of the document."""
    return {"$ref": _REF.format(name=name)}


def keyed(scope: Scope) -> list[dict[str, list[str]]]:
    """Return the `security` of an operation: a key, with a scope."""
    return [{"key": [scope]}]


def answers(ok: str, example: Any, *codes: str, status: str = "200", what: str = "") -> dict[str, Any]:
    """Return the `responses` of an operation: what it answers, and the problems it may answer instead."""
    responses: dict[str, Any] = {
        status: {"description": what or "OK", "content": {"application/json": {"schema": ref(ok), "example": example}}}
    }
    for code in codes:
        kind = PROBLEMS[code]
        response = responses.setdefault(
            str(kind.status),
            {"description": "", "content": {MEDIA_TYPE: {"schema": ref("ProblemReply"), "examples": {}}}},
        )
        response["description"] += f"{'; ' if response['description'] else ''}`{code}`: {kind.means}"
        response["content"][MEDIA_TYPE]["examples"][code] = {
            "summary": kind.title,
            "value": {"type": type_of(code), "title": kind.title, "status": kind.status},
        }
    return responses


_OF_A_BODY: Final = (
    "malformed-body",
    "empty-body",
    "body-too-large",
    "unsupported-media-type",
    "invalid-request",
)
_OF_AN_ACT: Final = ("unknown-name", "act-refused", "no-administration", "database-away")


def operation(
    operation_id: str,
    summary: str,
    *,
    tag: str,
    scope: Scope,
    answer: type[Struct],
    example: Any,
    description: str = "",
    parameters: Sequence[dict[str, Any]] = (),
    body: type[Struct] | None = None,
    body_example: Any = None,
    status: int = 200,
    is_act: bool = False,
    problems: Iterable[str] = (),
) -> dict[str, Any]:
    """Return an operation whole.

    Shape: problems of keys, of bodies (with `body`) and of acts (with `is_act`) stand there by themselves; `problems` adds to
    them. Examples must fit their schemas, which a test checks.
    """
    codes = ["unauthenticated", "scope-missing", "internal-error"]
    codes += _OF_A_BODY if body is not None else ()
    codes += _OF_AN_ACT if is_act else ()
    codes += [code for code in problems if code not in codes]
    made: dict[str, Any] = {
        "summary": summary,
        "description": description,
        "operationId": operation_id,
        "tags": [tag],
        "security": keyed(scope),
        "parameters": list(parameters),
        "responses": answers(answer.__name__, example, *codes, status=str(status)),
    }
    if body is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": ref(body.__name__), "example": body_example}},
        }
    return {name: value for name, value in made.items() if value or name == "security"}


def with_files(made: dict[str, Any], media_types: Iterable[str]) -> dict[str, Any]:
    """Return an operation that answers with a file, of one of some media types, and not with JSON of ours."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    of_file = {"description": "The file.", "content": dict.fromkeys(media_types, binary)}
    return {**made, "responses": {**made["responses"], "200": of_file}}


def path_parameter(name: str, description: str, example: str) -> dict[str, Any]:
    """Return a parameter that stands in the path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
        "description": description,
        "example": example,
    }


def query_parameter(name: str, description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a parameter that may stand in the query."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "schema": schema or {"type": "string"},
        "description": description,
    }


def complete(document: dict[str, Any], rooms: Sequence[Room]) -> dict[str, Any]:
    """Return FastAPI's document with our operations, our schemas, the key, and words for the tags."""
    document["paths"] = {}
    for room in rooms:
        for route in room.router.routes:
            if isinstance(route, APIRoute) and route.openapi_extra is not None:
                for method in sorted(route.methods or ()):
                    document["paths"].setdefault(route.path, {})[method.lower()] = route.openapi_extra
    document["info"]["description"] = TEXT.strip()
    document["components"] = {
        "schemas": _schemas(rooms),
        "securitySchemes": {
            "key": {
                "type": "http",
                "scheme": "bearer",
                "description": f"A token of `tallystick keys create`. Scopes: {', '.join(SCOPES)}.",
            }
        },
    }
    document["tags"] = [{"name": room.tag, "description": room.about} for room in rooms if room.tag]
    return document


def _schemas(rooms: Sequence[Room]) -> dict[str, Any]:
    types = dict.fromkeys([ProblemReply, *(kind for room in rooms for kind in room.schemas)])
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    schemas["ProblemReply"]["properties"]["type"]["enum"] = [type_of(code) for code in PROBLEMS]
    for room in rooms:
        if room.complete is not None:
            room.complete(schemas)
    return dict(sorted(schemas.items()))
