"""Whose usage object it is, and so what its counts include: one record per flavour, which `ingest/counts.py` interprets.

A record says where each count stands, which counts lie inside which, how the total is made up and how the frames of a
stream fold. Inclusive totals become disjoint meters by these records and nowhere else. Sources are named on each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

Place = str | tuple[str, ...]
"""Where a count stands: keys joined by dots, or a tuple of keys where a key has dots of its own."""
Places = tuple[Place, ...]
"""Every spelling of one count; of several stated ones the first in this order counts, and they are never added."""

Lies = Literal["inside", "beside", "inside_or_beside", "beside_or_inside", "inside_if_it_fits"]
"""Where a detail lies to the count of its side. Of the kinds with an `or`, the first holds unless the stated total closes
only with the second. `inside_if_it_fits`: no total tells, so that what fits inside is taken to be there, and flagged."""


@dataclass(frozen=True, slots=True)
class Detail:
    """A count beside or inside the count of its side."""

    meter: str
    at: Places
    lies: Lies = "inside"
    by_modality: Places = ()
    """A list or map that splits this count by modality."""


@dataclass(frozen=True, slots=True)
class Side:
    """The input or the output of a call: a count, what lies inside or beside it, and its split by modality."""

    meter: str
    """What is left of the count once the details inside it are taken off."""
    at: Places
    details: tuple[Detail, ...] = ()
    required: Literal["always", "unless_total_closes", "never"] = "always"
    modalities: Mapping[str, Places] = field(default_factory=dict)
    """Modality to where its share of the whole side stands; that of the side's own meter needs none, it is what is left."""
    by_modality: Places = ()
    """A list of {modality, tokenCount}, or a map of modality to count, that splits the whole side."""
    modality_prefix: str = ""
    """`uncached_input` for uncached_input_audio_tokens."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Cache writes as one aggregate and split by lifetime."""

    total: Places
    split: Mapping[str, Places] = field(default_factory=dict)
    """Meter to place."""
    listed: Place = ()
    """A list of {ttl, inputTokens}."""
    words: Mapping[str, str] = field(default_factory=dict)
    """The ttl of that list to the meter."""


@dataclass(frozen=True, slots=True)
class Inner:
    """A list of model calls inside one answer, each with its own counts and model: each is priced alone."""

    at: str
    usage: str = ""
    """Key of the counts in an entry; none where the entry itself holds them."""
    kinds_in_total: tuple[str, ...] = ()
    """The kinds of calls that the top level counts too; none where it counts all."""
    replaced_by: str = ""
    """Where a call of this kind is listed, the top level counts only such calls: those before were declined."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What changes the price in a way that no count shows: it is flagged, and the entry stays unpriced."""

    at: str
    flag: str
    words: tuple[str, ...] = ()
    """Only if one of these stands there; none for whatever stands there."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one kind of usage object is read."""

    name: str
    wrote_by: str
    input: Side
    output: Side
    source: str
    version: int = 1
    """Raised whenever this record, or what the reader makes of it, reads an object differently: see `events reread`."""
    stream: Literal["last_stated", "anthropic_deltas", "each_counts"] = "last_stated"
    """`each_counts`: each frame is a model call of its own, and becomes a row of its own."""
    total: Places = ()
    """Where the provider states the sum of all token counts; none where it states no sum."""
    is_total_optional: bool = False
    twice_in_total: tuple[str, ...] = ()
    """Meters that the provider's total counts a second time."""
    outside_total: tuple[str, ...] = ()
    """Meters that the provider's total may lack."""
    lifetimes: Lifetimes | None = None
    calls: Mapping[str, Places] = field(default_factory=dict)
    """Meter to place of counts that are no tokens."""
    seconds: Mapping[str, Places] = field(default_factory=dict)
    """Meter to place of lengths in seconds, of which a started one counts as a whole one."""
    called: Place = ()
    """A list with one word for each call of a tool."""
    called_words: Mapping[str, str] = field(default_factory=dict)
    """Those words to meters; an empty meter is a tool that nobody bills."""
    each_call: tuple[str, ...] = ()
    """Meters of which every call counts one."""
    inner: Inner | None = None
    wrapped_in: Places = ()
    """Where the counts stand if the whole answer was sent instead of its usage object."""
    cache_hit: str = ""
    """A flag that says: the sender's own cache answered, so that nothing was used."""
    tier: Places = ()
    """Where the served tier stands; the first place with another word than the standard tier's counts."""
    premium: Places = ()
    """Where a mode with a price of its own stands: other than the standard it is the tier, whatever else is stated."""
    tier_words: Mapping[str, str] = field(default_factory=dict)
    """The provider's word for a tier to ours, where they differ."""
    tier_is: str = ""
    """The tier of everything of this flavour, whatever else is stated."""
    unknown_if_absent: Mapping[str, str] = field(default_factory=dict)
    """Meter to the flag that says: this sender's counter can be switched off, so its absence is no zero."""
    also: Places = ()
    """Counts that stay inside the others, or beside what is billed, and change no meter."""
    noted: Mapping[str, Places] = field(default_factory=dict)
    """Name to place of numbers that are no quantities and worth keeping beside the entry."""
    unread: tuple[Unread, ...] = ()


# --- OpenAI, and who writes like it ----------------------------------------------------------------------------------


def _spelled(prefixes: tuple[str, ...], *names: str) -> Places:
    """Return every name under every prefix, the first prefix first."""
    return tuple(f"{prefix}.{name}" for prefix in prefixes for name in names)


_PROMPT_DETAILS: Final = ("prompt_tokens_details",)
_COMPLETION_DETAILS: Final = ("completion_tokens_details",)


def _prompt(*others: Detail, cached: Places = (), lies: Lies = "inside") -> Side:
    return Side(
        meter="uncached_input_tokens",
        at=("prompt_tokens",),
        details=(
            Detail("cache_read_tokens", (*_spelled(_PROMPT_DETAILS, "cached_tokens"), *cached), lies),
            *others,
        ),
        modalities={m: _spelled(_PROMPT_DETAILS, f"{m}_tokens") for m in ("audio", "image", "video")},
        modality_prefix="uncached_input",
    )


def _completion(*others: Detail, reasoning: Places = (), lies: Lies = "inside") -> Side:
    return Side(
        meter="visible_output_tokens",
        at=("completion_tokens",),
        details=(
            Detail("reasoning_tokens", (*_spelled(_COMPLETION_DETAILS, "reasoning_tokens"), *reasoning), lies),
            Detail("rejected_prediction_tokens", _spelled(_COMPLETION_DETAILS, "rejected_prediction_tokens")),
            *others,
        ),
        modalities={m: _spelled(_COMPLETION_DETAILS, f"{m}_tokens") for m in ("audio", "image")},
        modality_prefix="visible_output",
    )


_WRITTEN: Final = Detail("cache_write_other_tokens", _spelled(_PROMPT_DETAILS, "cache_write_tokens"))
_IN_BOTH: Final[Places] = (
    "prompt_tokens_details.text_tokens",
    "completion_tokens_details.text_tokens",
    # Predicted tokens that stand in the answer are visible output like any other.
    "completion_tokens_details.accepted_prediction_tokens",
)
_NO_OUTPUT: Final = Side(meter="visible_output_tokens", at=(), required="never")

_OPENAI_CHAT: Final = Flavour(
    name="openai.chat",
    wrote_by="OpenAI, chat completions",
    input=_prompt(_WRITTEN),
    output=_completion(),
    total=("total_tokens",),
    also=_IN_BOTH,
    # Servers that copy this shape put the tier beside the counts; OpenAI itself puts it on the response.
    tier=("service_tier",),
    source="openai/openai-python types/completion_usage.py; usage API: input includes cached and written",
)

_OPENAI_RESPONSES: Final = Flavour(
    name="openai.responses",
    wrote_by="OpenAI, responses and their compaction",
    input=Side(
        meter="uncached_input_tokens",
        at=("input_tokens",),
        details=(
            Detail("cache_read_tokens", ("input_tokens_details.cached_tokens",)),
            Detail("cache_write_other_tokens", ("input_tokens_details.cache_write_tokens",)),
        ),
    ),
    output=Side(
        meter="visible_output_tokens",
        at=("output_tokens",),
        details=(Detail("reasoning_tokens", ("output_tokens_details.reasoning_tokens",)),),
    ),
    total=("total_tokens",),
    tier=("service_tier",),
    source="openai/openai-python types/responses/response_usage.py, compacted_response.py",
)

_OPENAI_REALTIME: Final = Flavour(
    name="openai.realtime",
    wrote_by="OpenAI, realtime",
    input=Side(
        meter="uncached_input_tokens",
        at=("input_tokens",),
        details=(
            Detail(
                "cache_read_tokens",
                ("input_token_details.cached_tokens",),
                by_modality=("input_token_details.cached_tokens_details",),
            ),
        ),
        modalities={m: (f"input_token_details.{m}_tokens",) for m in ("audio", "image")},
        modality_prefix="uncached_input",
    ),
    output=Side(
        meter="visible_output_tokens",
        at=("output_tokens",),
        details=(Detail("reasoning_tokens", ("output_token_details.reasoning_tokens",)),),
        modalities={"audio": ("output_token_details.audio_tokens",)},
        modality_prefix="visible_output",
    ),
    total=("total_tokens",),
    # Each response of a session is billed by itself, with the earlier turns as (mostly cached) input.
    stream="each_counts",
    also=("input_token_details.text_tokens", "output_token_details.text_tokens"),
    # The transcription of what was heard is another model's call: an event of its own, flavour openai.transcription.
    unread=(Unread("type", "transcription_unread"),),
    source="openai/openai-python types/realtime/realtime_response_usage*.py",
)

_EMBEDDINGS: Final = Flavour(
    name="openai.embeddings",
    wrote_by="OpenAI, embeddings, and servers that write like it",
    input=Side(meter="embedding_input_tokens", at=("prompt_tokens",)),
    output=_NO_OUTPUT,
    total=("total_tokens",),
    source="openai/openai-python types/create_embedding_response.py",
)

_OPENAI: Final = (
    _OPENAI_CHAT,
    _OPENAI_RESPONSES,
    _OPENAI_REALTIME,
    Flavour(
        name="openai.images",
        wrote_by="OpenAI, images",
        input=Side(
            meter="uncached_input_tokens",
            at=("input_tokens",),
            details=(Detail("cache_read_tokens", ("input_tokens_details.cached_tokens",)),),
            modalities={"image": ("input_tokens_details.image_tokens",)},
            modality_prefix="uncached_input",
        ),
        output=Side(
            # Details are optional: without them all that an image model makes is image.
            meter="visible_output_image_tokens",
            at=("output_tokens",),
            modalities={"text": ("output_tokens_details.text_tokens",)},
            modality_prefix="visible_output",
        ),
        total=("total_tokens",),
        also=("input_tokens_details.text_tokens", "output_tokens_details.image_tokens"),
        source="openai/openai-python types/images_response.py",
    ),
    Flavour(
        name="openai.transcription",
        wrote_by="OpenAI, transcription: tokens or a duration",
        input=Side(
            meter="uncached_input_tokens",
            at=("input_tokens",),
            required="never",
            modalities={"audio": ("input_token_details.audio_tokens",)},
            modality_prefix="uncached_input",
        ),
        output=Side(meter="visible_output_tokens", at=("output_tokens",), required="never"),
        total=("total_tokens",),
        is_total_optional=True,
        seconds={"audio_input_seconds": ("seconds",)},
        also=("input_token_details.text_tokens",),
        source="openai/openai-python types/audio/transcription.py: a union on `type`",
    ),
    Flavour(
        name="openai.speech",
        wrote_by="OpenAI, speech: the sender counts the characters of the request",
        input=Side(meter="uncached_input_tokens", at=("input_tokens",), required="never"),
        output=Side(
            meter="visible_output_audio_tokens",
            at=("output_tokens",),
            required="never",
        ),
        total=("total_tokens",),
        is_total_optional=True,
        calls={"characters": ("characters", "input_characters")},
        source="openai/openai-python types/audio/speech_create_params.py; the usage API counts characters",
    ),
    _EMBEDDINGS,
    Flavour(
        name="openai.batch",
        wrote_by="OpenAI, one line of a batch's results, of either API",
        # The job's own usage is a check of the lines and never an event beside them.
        input=replace(
            _OPENAI_RESPONSES.input,
            at=("input_tokens", "prompt_tokens"),
            details=(
                Detail(
                    "cache_read_tokens", ("input_tokens_details.cached_tokens", "prompt_tokens_details.cached_tokens")
                ),
                Detail(
                    "cache_write_other_tokens",
                    ("input_tokens_details.cache_write_tokens", "prompt_tokens_details.cache_write_tokens"),
                ),
            ),
            modalities={m: _spelled(_PROMPT_DETAILS, f"{m}_tokens") for m in ("audio", "image")},
            modality_prefix="uncached_input",
        ),
        output=replace(
            _OPENAI_RESPONSES.output,
            at=("output_tokens", "completion_tokens"),
            details=(
                Detail(
                    "reasoning_tokens",
                    ("output_tokens_details.reasoning_tokens", "completion_tokens_details.reasoning_tokens"),
                ),
                Detail("rejected_prediction_tokens", _spelled(_COMPLETION_DETAILS, "rejected_prediction_tokens")),
            ),
            # An embedding's line has no output.
            required="unless_total_closes",
        ),
        total=("total_tokens",),
        tier_is="batch",
        also=_IN_BOTH,
        source="openai/openai-python types/batch_usage.py; a line holds the body of the API that it went to",
    ),
    replace(
        _OPENAI_CHAT,
        name="azure.chat",
        wrote_by="Azure OpenAI and Foundry, chat completions",
        output=_completion(reasoning=("reasoning_tokens",)),
        also=(*_IN_BOTH, "audio_prompt_tokens"),
        source="as openai.chat (pydantic/genai-prices azure.yml); hosted models put reasoning beside the counts",
    ),
    replace(
        _OPENAI_RESPONSES, name="azure.responses", wrote_by="Azure OpenAI, responses", source="as openai.responses"
    ),
    replace(_OPENAI_REALTIME, name="azure.realtime", wrote_by="Azure OpenAI, realtime", source="as openai.realtime"),
)

_LIKE_OPENAI: Final = (
    replace(
        _OPENAI_CHAT,
        name="openai.compatible",
        wrote_by="Servers that write like OpenAI: Cerebras, Together, Hugging Face, Snowflake, Heroku, Z.ai and others",
        input=_prompt(_WRITTEN, cached=("cached_tokens",)),
        output=_completion(reasoning=("reasoning_tokens",)),
        source="recordings in data/wire-usage: some put cached_tokens beside the counts",
    ),
    replace(
        _OPENAI_CHAT,
        name="alibaba.chat",
        wrote_by="Alibaba, Qwen",
        input=_prompt(
            Detail(
                "cache_write_other_tokens",
                _spelled(_PROMPT_DETAILS, "cache_creation_input_tokens", "cache_write_tokens"),
            )
        ),
        source="vercel/ai packages/alibaba: reads and writes lie inside the prompt",
    ),
    replace(
        _OPENAI_CHAT,
        name="moonshot.chat",
        wrote_by="Moonshot, Kimi",
        input=_prompt(cached=("cached_tokens",)),
        source="vercel/ai packages/moonshotai: cached tokens at the top level or in the details, inside the prompt",
    ),
    replace(
        _OPENAI_CHAT,
        name="perplexity.chat",
        wrote_by="Perplexity",
        output=_completion(
            Detail("citation_tokens", ("citation_tokens",), "beside_or_inside"),
            reasoning=("reasoning_tokens",),
            # Two libraries read it in two ways; only the total tells.
            lies="beside_or_inside",
        ),
        calls={"web_search_calls": ("num_search_queries",)},
        source="pydantic/genai-prices perplexity.yml: citation and reasoning are billed besides, in deep research",
    ),
    replace(
        _OPENAI_CHAT,
        name="deepseek.chat",
        wrote_by="DeepSeek",
        input=_prompt(cached=("prompt_cache_hit_tokens",)),
        also=(*_IN_BOTH, "prompt_cache_miss_tokens"),
        source="vercel/ai packages/deepseek: hit and miss make the prompt; reasoning lies inside the completion",
    ),
    replace(
        _OPENAI_CHAT,
        name="mistral.chat",
        wrote_by="Mistral",
        input=_prompt(
            # Whether connectors' tokens lie inside the prompt is documented nowhere.
            Detail("tool_prompt_tokens", ("connector_tokens",), "beside_or_inside"),
            cached=("prompt_token_details.cached_tokens", "num_cached_tokens"),
        ),
        seconds={"audio_input_seconds": ("prompt_audio_seconds",)},
        source="mistralai/client-python usageinfo.py, conversationusageinfo.py; three spellings of cached tokens",
    ),
    Flavour(
        name="mistral.ocr",
        wrote_by="Mistral, OCR",
        input=Side(meter="uncached_input_tokens", at=("prompt_tokens",), required="never"),
        output=Side(meter="visible_output_tokens", at=("completion_tokens",), required="never"),
        calls={"pages": ("pages_processed",)},
        source="mistralai/client-python ocrusageinfo.py",
    ),
    replace(
        _OPENAI_CHAT,
        name="groq.chat",
        wrote_by="Groq, and its compound systems",
        inner=Inner("usage_breakdown.models", usage="usage"),
        # The last chunk of a stream holds the counts under x_groq; elsewhere that key has another meaning.
        wrapped_in=("x_groq.usage",),
        source="groq/groq-python types/completion_usage.py, chat_completion.py, chat_completion_chunk.py",
    ),
    replace(
        _OPENAI_CHAT,
        name="openrouter.chat",
        wrote_by="OpenRouter, chat completions",
        calls={
            "web_search_calls": ("server_tool_use_details.web_search_requests", "server_tool_use.web_search_requests")
        },
        premium=("speed",),
        noted={"provider_cost": ("cost",)},
        source="pydantic/genai-prices openrouter.yml; recordings in data/wire-usage",
    ),
    replace(
        _OPENAI_RESPONSES,
        name="openrouter.responses",
        wrote_by="OpenRouter, responses",
        noted={"provider_cost": ("cost",)},
        source="recordings in data/wire-usage",
    ),
)

# --- xAI: three APIs, two conventions --------------------------------------------------------------------------------

_XAI: Final = (
    replace(
        _OPENAI_CHAT,
        name="xai.chat",
        wrote_by="xAI, chat completions",
        # Reads lie inside the prompt, but for answers whose total closes only with them beside it.
        input=_prompt(lies="inside_or_beside"),
        output=_completion(lies="beside_or_inside"),
        noted={"cost_in_usd_ticks": ("cost_in_usd_ticks",)},
        source="vercel/ai packages/xai convert-xai-chat-usage.ts, pull request 12425; recordings: total holds reasoning",
    ),
    replace(
        _OPENAI_RESPONSES,
        name="xai.responses",
        wrote_by="xAI, responses",
        calls={
            f"{tool}_calls": (f"server_side_tool_usage_details.{name}_calls",)
            for tool, name in (
                ("web_search", "web_search"),
                ("x_search", "x_search"),
                ("code_execution", "code_interpreter"),
                ("file_search", "file_search"),
                ("document_search", "document_search"),
                ("image_generation", "image_generation"),
            )
        },
        noted={"cost_in_usd_ticks": ("cost_in_usd_ticks",)},
        source="vercel/ai packages/xai responses; recordings: reasoning lies inside the output",
    ),
    Flavour(
        name="xai.native",
        wrote_by="xAI, native API",
        input=Side(
            meter="uncached_input_tokens",
            at=("prompt_tokens",),
            details=(Detail("cache_read_tokens", ("cached_prompt_text_tokens",)),),
            modalities={"image": ("prompt_image_tokens",)},
            modality_prefix="uncached_input",
        ),
        output=Side(
            meter="visible_output_tokens",
            at=("completion_tokens",),
            details=(Detail("reasoning_tokens", ("reasoning_tokens",), "beside_or_inside"),),
        ),
        total=("total_tokens",),
        called="server_side_tools_used",
        called_words={
            "SERVER_SIDE_TOOL_WEB_SEARCH": "web_search_calls",
            "SERVER_SIDE_TOOL_X_SEARCH": "x_search_calls",
            "SERVER_SIDE_TOOL_CODE_EXECUTION": "code_execution_calls",
            "SERVER_SIDE_TOOL_COLLECTIONS_SEARCH": "file_search_calls",
            "SERVER_SIDE_TOOL_ATTACHMENT_SEARCH": "document_search_calls",
            # The server behind it is the caller's own.
            "SERVER_SIDE_TOOL_MCP": "",
        },
        also=("prompt_text_tokens",),
        tier=("service_tier",),
        noted={"cost_in_usd_ticks": ("cost_in_usd_ticks",)},
        source="xai-org/xai-proto usage.proto; recordings: cached text lies inside the prompt, reasoning in the total",
    ),
    Flavour(
        name="xai.realtime",
        wrote_by="xAI, realtime",
        input=Side(
            meter="uncached_input_tokens",
            at=("input_tokens",),
            modalities={"audio": ("input_token_details.audio_tokens",)},
            modality_prefix="uncached_input",
        ),
        output=Side(
            meter="visible_output_tokens",
            at=("output_tokens",),
            modalities={"audio": ("output_token_details.audio_tokens",)},
            modality_prefix="visible_output",
        ),
        total=("total_tokens",),
        stream="each_counts",
        also=("input_token_details.text_tokens", "output_token_details.text_tokens"),
        noted={"billable_audio_seconds": ("billable_audio_seconds",)},
        source="recordings in data/wire-usage",
    ),
)

# --- Anthropic -------------------------------------------------------------------------------------------------------

BEYOND_THE_SPLIT: Final = "unstated_lifetime_input_tokens"
"""Where the fold of a stream puts writes beyond the split of its start."""

_ANTHROPIC: Final = Flavour(
    name="anthropic.messages",
    wrote_by="Anthropic, messages and their batches; Claude on Vertex AI and in Bedrock's InvokeModel",
    version=2,
    input=Side(
        meter="uncached_input_tokens",
        at=("input_tokens",),
        details=(
            Detail("cache_read_tokens", ("cache_read_input_tokens",), "beside"),
            Detail("cache_write_5m_tokens", (), "beside"),
            Detail("cache_write_1h_tokens", (), "beside"),
            Detail("cache_write_other_tokens", (), "beside"),
        ),
    ),
    output=Side(
        meter="visible_output_tokens",
        at=("output_tokens",),
        details=(Detail("reasoning_tokens", ("output_tokens_details.thinking_tokens",)),),
    ),
    stream="anthropic_deltas",
    lifetimes=Lifetimes(
        total=("cache_creation_input_tokens",),
        split={
            "cache_write_5m_tokens": ("cache_creation.ephemeral_5m_input_tokens",),
            "cache_write_1h_tokens": ("cache_creation.ephemeral_1h_input_tokens",),
            # No provider sends this one: the fold of a stream puts it there.
            "cache_write_other_tokens": (f"cache_creation.{BEYOND_THE_SPLIT}",),
        },
    ),
    calls={
        "web_search_calls": ("server_tool_use.web_search_requests",),
        "web_fetch_calls": ("server_tool_use.web_fetch_requests",),
    },
    tier=("service_tier",),
    premium=("speed",),
    inner=Inner("iterations", kinds_in_total=("message",), replaced_by="fallback_message"),
    # Redeemed credit makes some of the writes cost what reads cost; how many, no count says.
    unread=(Unread("fallback_credit.status", "fallback_credit", ("redeemed",)),),
    source="anthropics/anthropic-sdk-python types/usage.py, message_delta_usage.py, beta/beta_*_iteration_usage.py",
)

_HIDDEN_CACHE: Final = {"cache_read_tokens": "cache_unknown"}

# --- Google ----------------------------------------------------------------------------------------------------------

_GEMINI: Final = Flavour(
    name="gemini.generate_content",
    wrote_by="Google, Gemini API and Vertex AI",
    input=Side(
        meter="uncached_input_tokens",
        at=("promptTokenCount",),
        details=(
            Detail("cache_read_tokens", ("cachedContentTokenCount",), by_modality=("cacheTokensDetails",)),
            Detail("tool_prompt_tokens", ("toolUsePromptTokenCount",), "beside"),
        ),
        by_modality=("promptTokensDetails",),
        modality_prefix="uncached_input",
    ),
    output=Side(
        meter="visible_output_tokens",
        at=("candidatesTokenCount",),
        # An older variant counts thoughts inside the candidates; only the total tells.
        details=(Detail("reasoning_tokens", ("thoughtsTokenCount",), "beside_or_inside"),),
        # Left out where nothing was said; the total must then close without it.
        required="unless_total_closes",
        by_modality=("candidatesTokensDetails",),
        modality_prefix="visible_output",
    ),
    total=("totalTokenCount",),
    tier=("serviceTier", "trafficType"),
    tier_words={
        "ON_DEMAND": "standard",
        "ON_DEMAND_PRIORITY": "priority",
        "ON_DEMAND_FLEX": "flex",
        "PROVISIONED_THROUGHPUT": "provisioned",
    },
    source="googleapis/python-genai types.py GenerateContentResponseUsageMetadata, with the total's formula",
)

_GOOGLE: Final = (
    _GEMINI,
    replace(
        _GEMINI,
        name="gemini.live",
        wrote_by="Google, Live API",
        output=replace(
            _GEMINI.output,
            at=("responseTokenCount", "candidatesTokenCount"),
            # Recordings have more thoughts than response, all of the response audio, and a total without them.
            details=(Detail("reasoning_tokens", ("thoughtsTokenCount",), "beside"),),
            by_modality=("responseTokensDetails", "candidatesTokensDetails"),
        ),
        outside_total=("reasoning_tokens",),
        # Recordings: each turn states its own counts, with the earlier turns as its prompt.
        stream="each_counts",
        source="googleapis/python-genai types.py UsageMetadata; recordings in data/wire-usage",
    ),
    Flavour(
        name="gemini.interactions",
        wrote_by="Google, Interactions API",
        input=Side(
            meter="uncached_input_tokens",
            at=("total_input_tokens",),
            details=(
                Detail("cache_read_tokens", ("total_cached_tokens",), by_modality=("cached_tokens_by_modality",)),
                Detail("tool_prompt_tokens", ("total_tool_use_tokens",), "beside"),
            ),
            by_modality=("input_tokens_by_modality",),
            modality_prefix="uncached_input",
        ),
        output=Side(
            meter="visible_output_tokens",
            at=("total_output_tokens",),
            details=(Detail("reasoning_tokens", ("total_thought_tokens",), "beside"),),
            by_modality=("output_tokens_by_modality",),
            modality_prefix="visible_output",
        ),
        total=("total_tokens",),
        source="googleapis/python-genai _gaos/types/interactions/usage.py; vercel/ai: cached inside, thoughts beside",
    ),
    Flavour(
        name="gemini.embeddings",
        wrote_by="Google, embeddings",
        input=Side(
            meter="embedding_input_tokens",
            at=("promptTokenCount",),
            by_modality=("promptTokensDetails", "promptTokenDetails"),
            modality_prefix="uncached_input",
        ),
        output=_NO_OUTPUT,
        total=("totalTokenCount",),
        is_total_optional=True,
        source="recordings in data/wire-usage",
    ),
)

# --- Amazon Bedrock --------------------------------------------------------------------------------------------------

_BEDROCK_WRITES: Final = Lifetimes(
    total=("cacheWriteInputTokens", "cacheWriteInputTokenCount"),
    listed="cacheDetails",
    words={"5m": "cache_write_5m_tokens", "1h": "cache_write_1h_tokens"},
)
_BEDROCK_CACHE: Final = (
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "cache_write_other_tokens",
)


def _bedrock_input(at: Places, lies: Lies) -> Side:
    read: Places = ("cacheReadInputTokens", "cacheReadInputTokenCount")
    first, *written = _BEDROCK_CACHE
    return Side("uncached_input_tokens", at, (Detail(first, read, lies), *(Detail(m, (), lies) for m in written)))


_BEDROCK: Final = (
    Flavour(
        name="bedrock.converse",
        wrote_by="Amazon Bedrock, Converse: Claude, Nova and others",
        input=_bedrock_input(("inputTokens",), "beside"),
        output=Side("visible_output_tokens", ("outputTokens",)),
        total=("totalTokens",),
        lifetimes=_BEDROCK_WRITES,
        tier=("serviceTier.type",),
        source="boto/botocore bedrock-runtime service-2.json TokenUsage, CacheDetail; recordings: the total holds the cache",
    ),
    Flavour(
        name="bedrock.converse_openai",
        wrote_by="Amazon Bedrock, ConverseStream of OpenAI's models",
        input=_bedrock_input(("inputTokens",), "inside_if_it_fits"),
        output=Side("visible_output_tokens", ("outputTokens",)),
        total=("totalTokens",),
        twice_in_total=_BEDROCK_CACHE,
        lifetimes=_BEDROCK_WRITES,
        tier=("serviceTier.type",),
        source="maximhq/bifrost pull request 6942: the stream's input holds what was read and written, the answer's does not",
    ),
    Flavour(
        name="bedrock.invoke",
        wrote_by="Amazon Bedrock, InvokeModel: its metrics, and bodies that are not Anthropic's",
        input=_bedrock_input(("inputTokenCount", "inputTokens", "prompt_token_count", "inputTextTokenCount"), "beside"),
        output=Side("visible_output_tokens", ("outputTokenCount", "outputTokens", "generation_token_count")),
        total=("totalTokens",),
        is_total_optional=True,
        lifetimes=_BEDROCK_WRITES,
        wrapped_in=("amazon-bedrock-invocationMetrics",),
        source="getlago/lago-agent-sdk-python adapters/bedrock_invoke.py; invocation metrics say the same as the body",
    ),
)

# --- Cohere and Voyage -----------------------------------------------------------------------------------------------

_COHERE: Final = (
    Flavour(
        name="cohere.chat",
        wrote_by="Cohere, chat",
        # What is billed counts; what was processed can be more, and whether it holds the cached ones is not documented.
        input=Side("uncached_input_tokens", ("billed_units.input_tokens",)),
        output=Side("visible_output_tokens", ("billed_units.output_tokens",)),
        noted={
            "processed_input_tokens": ("tokens.input_tokens",),
            "processed_output_tokens": ("tokens.output_tokens",),
            "cached_tokens": ("cached_tokens",),
        },
        source="cohere-ai/cohere-python types/usage.py, usage_billed_units.py",
    ),
    Flavour(
        name="cohere.embeddings",
        wrote_by="Cohere, embeddings",
        input=Side(
            "embedding_input_tokens",
            ("billed_units.input_tokens",),
            (Detail("uncached_input_image_tokens", ("billed_units.image_tokens",), "beside"),),
            required="never",
        ),
        output=_NO_OUTPUT,
        calls={"images": ("billed_units.images",)},
        source="cohere-ai/cohere-python types/api_meta_billed_units.py",
    ),
    Flavour(
        name="cohere.rerank",
        wrote_by="Cohere, rerank",
        input=Side("uncached_input_tokens", ("billed_units.input_tokens",), required="never"),
        output=_NO_OUTPUT,
        calls={"search_units": ("billed_units.search_units",)},
        source="cohere-ai/cohere-python types/api_meta_billed_units.py: a unit is a query with up to 100 documents",
    ),
    Flavour(
        name="voyage.embeddings",
        wrote_by="Voyage, embeddings and rerank",
        input=Side("embedding_input_tokens", ("total_tokens",)),
        output=_NO_OUTPUT,
        source="recordings in data/wire-usage: one count, of input",
    ),
)

# --- Engines that one runs oneself -----------------------------------------------------------------------------------

_VLLM_CHAT: Final = Flavour(
    name="vllm.chat",
    wrote_by="vLLM, the OpenAI-compatible server",
    input=Side(
        meter="uncached_input_tokens",
        at=("prompt_tokens",),
        details=(Detail("cache_read_tokens", ("prompt_tokens_details.cached_tokens",)),),
        by_modality=("prompt_tokens_details.multimodal_tokens",),
        modality_prefix="uncached_input",
    ),
    output=Side(
        meter="visible_output_tokens",
        at=("completion_tokens",),
        details=(Detail("reasoning_tokens", ("completion_tokens_details.reasoning_tokens",)),),
    ),
    total=("total_tokens",),
    # Computed like any other and billed by nobody: they stay uncached input.
    also=("prompt_tokens_details.created_cache_tokens",),
    unknown_if_absent=_HIDDEN_CACHE,
    source="vllm entrypoints/serve/engine/protocol.py; cached counts only with --enable-prompt-tokens-details",
)

_ENGINES: Final = (
    _VLLM_CHAT,
    replace(
        _ANTHROPIC,
        name="vllm.messages",
        version=1,
        wrote_by="vLLM, the Anthropic-compatible server",
        inner=None,
        unread=(),
        unknown_if_absent=_HIDDEN_CACHE,
        source="vllm entrypoints/anthropic/serving.py: without cache details the whole prompt is input_tokens",
    ),
    Flavour(
        name="vllm.rerank",
        wrote_by="vLLM, rerank and score",
        # A query is what is sold; the tokens that it took are information.
        input=Side("uncached_input_tokens", (), required="never"),
        output=_NO_OUTPUT,
        each_call=("search_units",),
        noted={"tokens": ("total_tokens", "prompt_tokens")},
        source="vllm entrypoints/pooling: prompt and total tokens, no completion",
    ),
    replace(
        _VLLM_CHAT,
        name="sglang.chat",
        wrote_by="SGLang, the OpenAI-compatible server",
        input=replace(
            _VLLM_CHAT.input,
            by_modality=(),
            modalities={m: _spelled(_PROMPT_DETAILS, f"{m}_tokens") for m in ("audio", "image", "video")},
        ),
        output=replace(
            _VLLM_CHAT.output,
            # The same number twice.
            details=(Detail("reasoning_tokens", ("completion_tokens_details.reasoning_tokens", "reasoning_tokens")),),
        ),
        also=(),
        source="sglang srt/entrypoints/openai/usage_processor.py; cached counts only with --enable-cache-report",
    ),
    replace(
        _ANTHROPIC,
        name="sglang.messages",
        version=1,
        wrote_by="SGLang, the Anthropic-compatible server",
        inner=None,
        unread=(),
        unknown_if_absent=_HIDDEN_CACHE,
        source="sglang srt/entrypoints/anthropic/serving.py: without the cache report the whole prompt is input_tokens",
    ),
    Flavour(
        name="tgi.chat",
        wrote_by="Text Generation Inference",
        input=Side("uncached_input_tokens", ("prompt_tokens",)),
        output=Side("visible_output_tokens", ("completion_tokens",)),
        total=("total_tokens",),
        source="huggingface/text-generation-inference router/src/chat.rs, lib.rs",
    ),
    Flavour(
        name="ollama.chat",
        wrote_by="Ollama, its own API",
        # Neither the cached nor the thinking share can be split off. Zero counts are left out by the server, which is
        # not to be told from a count that was lost, so that both are required.
        input=Side("uncached_input_tokens", ("prompt_eval_count",)),
        output=Side("visible_output_tokens", ("eval_count",)),
        source="ollama/ollama api/types.go Metrics",
    ),
    Flavour(
        name="llamacpp.chat",
        wrote_by="llama.cpp, the OpenAI-compatible server",
        input=Side(
            "uncached_input_tokens",
            ("prompt_tokens",),
            (Detail("cache_read_tokens", ("prompt_tokens_details.cached_tokens", "timings.cache_n")),),
        ),
        output=Side("visible_output_tokens", ("completion_tokens",)),
        total=("total_tokens",),
        source="ggml-org/llama.cpp tools/server/server-task.cpp usage_json_oaicompat",
    ),
    Flavour(
        name="llamacpp.completion",
        wrote_by="llama.cpp, its own API",
        # tokens_cached is what the server holds after the request, and no hit.
        input=Side(
            "uncached_input_tokens",
            ("tokens_evaluated",),
            (Detail("cache_read_tokens", ("timings.cache_n",)),),
        ),
        output=Side("visible_output_tokens", ("tokens_predicted",)),
        also=("timings.prompt_n", "timings.predicted_n", "tokens_cached"),
        source="ggml-org/llama.cpp tools/server/server-task.cpp: timings.cache_n + timings.prompt_n make the prompt",
    ),
)

# --- What others made of a provider's counts -------------------------------------------------------------------------


def _otel(*names: str) -> Places:
    return tuple((f"gen_ai.usage.{name}",) for name in names)


_RELAYS: Final = (
    Flavour(
        name="litellm.standard",
        wrote_by="LiteLLM, StandardLoggingPayload or its usage_object",
        input=Side(
            meter="uncached_input_tokens",
            at=("prompt_tokens",),
            details=(
                # The same counts stand at the top level once more.
                Detail("cache_read_tokens", ("prompt_tokens_details.cached_tokens", "cache_read_input_tokens")),
                Detail("cache_write_5m_tokens", ()),
                Detail("cache_write_1h_tokens", ()),
                Detail("cache_write_other_tokens", ()),
            ),
            modalities={m: _spelled(_PROMPT_DETAILS, f"{m}_tokens") for m in ("audio", "image", "video")},
            modality_prefix="uncached_input",
        ),
        output=_completion(),
        total=("total_tokens",),
        lifetimes=Lifetimes(
            total=(
                "prompt_tokens_details.cache_write_tokens",
                "prompt_tokens_details.cache_creation_tokens",
                "cache_creation_input_tokens",
            ),
            split={
                f"cache_write_{ttl}_tokens": _spelled(
                    ("prompt_tokens_details.cache_creation_token_details",), f"ephemeral_{ttl}_input_tokens"
                )
                for ttl in ("5m", "1h")
            },
        ),
        also=_IN_BOTH,
        wrapped_in=("metadata.usage_object", "usage_object"),
        cache_hit="cache_hit",
        tier=("service_tier", "cost_breakdown.service_tier"),
        source="BerriAI/litellm types/utils.py StandardLoggingPayload, Usage: OpenAI's convention for every provider",
    ),
    Flavour(
        name="otel.gen_ai",
        wrote_by="OpenTelemetry, gen_ai attributes of a span",
        input=Side(
            meter="uncached_input_tokens",
            at=(*_otel("input_tokens", "prompt_tokens"), ("llm.token_count.prompt",)),
            details=(
                Detail(
                    "cache_read_tokens",
                    (*_otel("cache_read.input_tokens"), ("llm.token_count.prompt_details.cache_read",)),
                ),
                # Renamed on the way: both spellings are one count.
                Detail(
                    "cache_write_other_tokens",
                    (
                        *_otel("cache_write.input_tokens", "cache_creation.input_tokens"),
                        ("llm.token_count.prompt_details.cache_write",),
                    ),
                ),
            ),
            modalities={m: _otel(f"{m}.input_tokens") for m in ("audio", "image", "video")},
            modality_prefix="uncached_input",
        ),
        output=Side(
            meter="visible_output_tokens",
            at=(*_otel("output_tokens", "completion_tokens"), ("llm.token_count.completion",)),
            details=(
                Detail(
                    "reasoning_tokens",
                    (*_otel("reasoning.output_tokens"), ("llm.token_count.completion_details.reasoning",)),
                ),
            ),
            modalities={"audio": _otel("audio.output_tokens")},
            modality_prefix="visible_output",
        ),
        total=(*_otel("total_tokens"), ("llm.token_count.total",)),
        is_total_optional=True,
        tier=(("openai.response.service_tier",),),
        also=(*_otel("text.input_tokens", "text.output_tokens"),),
        source="open-telemetry/semantic-conventions docs/registry/attributes/gen-ai.md: input holds the cache, output reasoning",
    ),
)

FLAVOURS: Final[Mapping[str, Flavour]] = {
    flavour.name: flavour
    for flavour in (
        *_OPENAI,
        *_LIKE_OPENAI,
        *_XAI,
        _ANTHROPIC,
        *_GOOGLE,
        *_BEDROCK,
        *_COHERE,
        *_ENGINES,
        *_RELAYS,
    )
}
