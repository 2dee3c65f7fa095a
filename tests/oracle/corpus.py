"""The recorded responses and priced expectations of data/wire-usage, and which flavour reads which of them."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parents[2] / "data"
_WIRE: Final = DATA / "wire-usage"

AS_OF: Final = "2026-11-01T12:00:00Z"
"""When the expectations were priced."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded response: the usage objects of its frames in order."""

    number: int
    provider: str
    api: str
    is_stream: bool
    model: str | None
    flavour: str
    frames: list[dict[str, Any]]
    kinds: list[str | None]
    """Where the recording says it, what kind of frame each object stood in."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the library genai-prices 0.2.3 makes of one usage object, read by one of its extractors."""

    number: int
    provider: str
    api: str
    model: str
    """The library's id of the model that it priced."""
    flavour: str
    usage: dict[str, Any]
    counts: dict[str, int]
    input_price: Decimal
    output_price: Decimal
    total_price: Decimal
    sees_output: bool
    """False where its extractor looks at the input alone: an embeddings extractor held to a chat completion."""


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(_WIRE / name, "rt") as packed:
        for line in packed:
            yield json.loads(line, parse_float=Decimal)


# (provider, api) to flavour; "*" for what has no row of its own. The recordings name some APIs only `default`: there the
# names of the counts decide between the two that a provider has.
_RECORDED: Final = {
    ("alibaba", "*"): "alibaba.chat",
    ("anthropic", "*"): "anthropic.messages",
    ("aws-bedrock", "invoke"): "anthropic.messages",
    ("aws-bedrock", "*"): "bedrock.converse",
    ("aws-bedrock-mantle", "chat.completions"): "openai.compatible",
    ("aws-bedrock-mantle", "responses"): "openai.responses",
    ("azure", "chat.completions"): "azure.chat",
    ("azure", "realtime"): "azure.realtime",
    ("azure", "responses"): "azure.responses",
    ("cohere", "embeddings"): "cohere.embeddings",
    ("cohere", "reranking"): "cohere.rerank",
    ("cohere", "*"): "cohere.chat",
    ("deepseek", "responses"): "openai.responses",
    ("deepseek", "*"): "deepseek.chat",
    ("google", "chat.completions"): "openai.compatible",
    ("google", "embeddings"): "gemini.embeddings",
    ("google", "interactions"): "gemini.interactions",
    ("google", "realtime"): "gemini.live",
    ("google", "speech-translation"): "gemini.live",
    ("google", "*"): "gemini.generate_content",
    ("google-vertex", "embeddings"): "gemini.embeddings",
    ("google-vertex", "*"): "gemini.generate_content",
    ("groq", "*"): "groq.chat",
    ("mistral", "*"): "mistral.chat",
    ("moonshot", "*"): "moonshot.chat",
    ("open-responses", "*"): "openai.responses",
    ("openai", "embedding"): "openai.embeddings",
    ("openai", "embeddings"): "openai.embeddings",
    ("openai", "realtime"): "openai.realtime",
    ("openai", "responses"): "openai.responses",
    ("openai", "transcription"): "openai.transcription",
    ("openai", "*"): "openai.chat",
    ("openai-compatible", "*"): "xai.chat",
    ("openrouter", "responses"): "openrouter.responses",
    ("openrouter", "*"): "openrouter.chat",
    ("perplexity", "*"): "perplexity.chat",
    ("pydantic-gateway", "chat.completions"): "openai.chat",
    ("pydantic-gateway", "converse"): "bedrock.converse",
    ("pydantic-gateway", "generateContent"): "gemini.generate_content",
    ("pydantic-gateway", "messages"): "anthropic.messages",
    ("pydantic-gateway", "responses"): "openai.responses",
    ("tgi", "*"): "tgi.chat",
    ("togetherai", "reranking"): "openai.embeddings",
    ("voyage", "*"): "voyage.embeddings",
    ("xai", "default"): "xai.chat",
    ("xai", "grpc-chat"): "xai.native",
    ("xai", "realtime"): "xai.realtime",
    ("xai", "responses"): "xai.responses",
    ("*", "*"): "openai.compatible",
}

# A frame of another call that stands in the same recording: a transcription inside a realtime session.
_OTHER_CALLS: Final = "conversation.item.input_audio_transcription.completed"


def _recorded_flavour(provider: str, api: str, frames: list[dict[str, Any]]) -> str:
    first = frames[0] if frames else {}
    if provider == "azure" and api == "default":
        return "azure.responses" if "input_tokens" in first else "azure.chat"
    if provider == "openai" and api == "realtime" and "promptTokenCount" in first:
        # Another provider's session in a test of this one.
        return "gemini.live"
    if provider == "openai" and api == "other" and "seconds" in first:
        return "openai.transcription"
    if provider == "cohere" and api == "default" and not (first.get("billed_units") or {}).get("output_tokens"):
        return "cohere.embeddings"
    return _RECORDED.get((provider, api)) or _RECORDED.get((provider, "*")) or _RECORDED["*", "*"]


@cache
def recordings() -> tuple[Recording, ...]:
    """Return every recorded response; a transcription inside a realtime session is a row of its own behind it."""
    found = []
    for number, row in enumerate(_lines("usage_events.jsonl.gz")):
        provider, api = row["provider"], row["api"]
        events = [event for event in row["usage_events"] if "guardrail" not in event["path"]]
        own = [event for event in events if event["type"] != _OTHER_CALLS]
        frames = [event["usage"] for event in own]
        flavour = _recorded_flavour(provider, api, frames)
        found.append(
            Recording(
                number, provider, api, row["stream"], row["model"], flavour, frames, [event["type"] for event in own]
            )
        )
    return tuple(found)


@cache
def transcriptions() -> tuple[Recording, ...]:
    """Return the transcriptions inside recorded realtime sessions: calls of another model, events of their own."""
    return tuple(
        Recording(
            number,
            row["provider"],
            "transcription",
            False,
            None,
            "openai.transcription",
            [event["usage"]],
            [event["type"]],
        )
        for number, row in enumerate(_lines("usage_events.jsonl.gz"))
        for event in row["usage_events"]
        if event["type"] == _OTHER_CALLS
    )


# The library's extractor (provider, flavour of its API) to ours, which reads the object the way that extractor means it.
_EXTRACTED: Final = {
    ("*", "anthropic"): "anthropic.messages",
    ("anthropic", "default"): "anthropic.messages",
    ("*", "responses"): "openai.responses",
    ("*", "chat"): "openai.chat",
    # What it reads of a chat completion is the prompt; our own embeddings flavour would refuse the rest of the total.
    ("*", "embeddings"): "openai.chat",
    ("google", "default"): "gemini.generate_content",
    ("groq", "default"): "groq.chat",
    ("mistral", "default"): "mistral.chat",
    ("deepseek", "chat"): "deepseek.chat",
    ("openrouter", "chat"): "openrouter.chat",
    ("cerebras", "chat"): "openai.compatible",
}


@cache
def expectations() -> tuple[Expectation, ...]:
    """Return every priced expectation with the object that it is about."""
    bodies = [row["body"] for row in _lines("genai_prices_usages_dataset.jsonl.gz")]
    found = []
    for number, row in enumerate(_lines("expected_costs_genai_prices_0.2.3.jsonl.gz")):
        provider, api, body = row["provider_id"], row["api_flavor"], bodies[row["index"]]
        flavour = _EXTRACTED.get((provider, api)) or _EXTRACTED["*", api]
        if provider.startswith("huggingface"):
            flavour = "openai.compatible"
        usage = body.get("usage") or body.get("usageMetadata")
        if api == "embeddings" and "completion_tokens" not in usage:
            flavour = "openai.embeddings"
        found.append(
            Expectation(
                number=number,
                provider=provider,
                api=api,
                model=row["matched_model"],
                flavour=flavour,
                usage=usage,
                counts=row["usage"],
                input_price=Decimal(row["input_price"] or 0),
                output_price=Decimal(row["output_price"] or 0),
                total_price=Decimal(row["total_price"]),
                sees_output=api != "embeddings",
            )
        )
    return tuple(found)
