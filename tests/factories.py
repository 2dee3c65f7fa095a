"""Builders for tests: short, with nothing random; each call says only what its test is about."""

import json
from collections.abc import Iterable
from typing import Any, Final

from ledger.parties import Model, Parties, Source, Tenant, TenantVersion
from ledger.times import parse_rfc3339

NOW: Final = parse_rfc3339("2026-01-15T10:01:00Z")
GATEWAY: Final = "gateway://eu-1"
NODE: Final = "node://gpu-7"
TENANT: Final = "t-alpha"


def make_event(event_id: str = "ev-1", **overrides: Any) -> dict[str, Any]:
    """Return one usage event: a small OpenAI call of t-alpha, with fields of `data` or the envelope replaced.

    `id`, `source`, `type`, `time`, `specversion` go to the envelope, every other name to `data`; `...` drops a field.
    """
    envelope: dict[str, Any] = {
        "specversion": "1.0",
        "id": event_id,
        "source": GATEWAY,
        "type": "llm.usage.v1",
        "time": "2026-01-15T10:00:00Z",
    }
    data: dict[str, Any] = {
        "tenant_id": TENANT,
        "feature": "chat",
        "language": "en",
        "request_id": f"req-{event_id}",
        "provider": "openai",
        "requested_model": "m-sub",
        "model": "m-sub",
        "status": "ok",
        "flavour": "openai.chat",
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    if "quantities" in overrides or "usage_frames" in overrides:
        data.pop("usage")
    for name, value in overrides.items():
        target = envelope if name in {"id", "source", "type", "time", "specversion"} else data
        if value is ...:
            target.pop(name, None)
        else:
            target[name] = value
    return {**envelope, "data": data}


def make_window(event_id: str = "w-1", **overrides: Any) -> dict[str, Any]:
    """Return a node's report about itself: a minute of gpu-7, eight H100, owned by t-alpha; `...` drops a field."""
    data: dict[str, Any] = {
        "tenant_id": TENANT,
        "node_id": "gpu-7",
        "starts_at": "2026-01-15T09:59:00Z",
        "ends_at": "2026-01-15T10:00:00Z",
        "gpu_model": "H100",
        "gpu_count": 8,
        **overrides,
    }
    stated = {name: value for name, value in data.items() if value is not ...}
    return {"specversion": "1.0", "id": event_id, "source": NODE, "type": "gpu.node.window.v1", "data": stated}


def event_bytes(*events: dict[str, Any]) -> bytes:
    """Return one event as an object, several as a pack."""
    return json.dumps(events[0] if len(events) == 1 else list(events)).encode()


def make_tenant(tenant_id: str = TENANT, **overrides: Any) -> Tenant:
    version = TenantVersion(0, "entity-1", overrides.pop("time_zone", "UTC"), overrides.pop("charge_currency", "USD"))
    return Tenant(**{"tenant_id": tenant_id, "starts_at": 0, "versions": (version,), **overrides})


def make_parties(
    *,
    tenants: Iterable[Tenant] = (),
    sources: Iterable[Source] = (),
    models: Iterable[tuple[str, Model]] = (),
    version: int = 1,
) -> Parties:
    """Return tenants t-alpha, t-beta, t-gamma (nobody speaks for it), a gateway that speaks for all, and a node.

    `models` adds (alias, model) pairs to m-sub, m-add, m-gem and m-vllm.
    """
    known = [make_tenant(), make_tenant("t-beta"), make_tenant("t-gamma"), *tenants]
    senders = [
        Source(GATEWAY, "gateway", 20, tenant_ids=frozenset({"t-alpha", "t-beta"})),
        Source(NODE, "node", 10, speaks_for_all=True),
        *sources,
    ]
    listed = [
        ("m-sub", Model("openai", "m-sub", 400_000, 128_000)),
        ("m-add", Model("anthropic", "m-add")),
        ("m-gem", Model("google", "m-gem")),
        ("m-vllm", Model("vllm", "m-vllm")),
        *models,
    ]
    return Parties(
        version,
        {tenant.tenant_id: tenant for tenant in known},
        {source.source: source for source in senders},
        {(model.provider, name): model for name, model in listed},
    )
