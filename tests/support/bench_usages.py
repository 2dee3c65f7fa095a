"""A small usage object for each flavour that has no recording."""

from typing import Any, Final

_CHAT: Final = {
    "prompt_tokens": 6010,
    "completion_tokens": 350,
    "total_tokens": 6360,
    "prompt_tokens_details": {"cached_tokens": 4096},
    "completion_tokens_details": {"reasoning_tokens": 200},
}
_MESSAGES: Final = {"input_tokens": 10, "cache_read_input_tokens": 4096, "output_tokens": 5}

SMALL: Final[dict[str, dict[str, Any]]] = {
    "openai.images": {"input_tokens": 50, "output_tokens": 4160, "total_tokens": 4210},
    "openai.speech": {"characters": 120},
    "openai.batch": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
    "mistral.ocr": {"pages_processed": 3},
    "bedrock.converse_openai": {
        "inputTokens": 5000,
        "cacheWriteInputTokens": 4990,
        "outputTokens": 20,
        "totalTokens": 10010,
    },
    "bedrock.invoke": {"inputTokenCount": 7, "outputTokenCount": 126, "cacheReadInputTokenCount": 14486},
    "vllm.chat": _CHAT,
    "vllm.messages": _MESSAGES,
    "vllm.rerank": {"total_tokens": 450},
    "sglang.chat": _CHAT,
    "sglang.messages": _MESSAGES,
    "ollama.chat": {"prompt_eval_count": 1300, "eval_count": 240},
    "llamacpp.chat": _CHAT,
    "llamacpp.completion": {"tokens_evaluated": 1030, "tokens_predicted": 75, "timings": {"cache_n": 900}},
    "litellm.standard": {**_CHAT, "cache_read_input_tokens": 4096},
    "otel.gen_ai": {"gen_ai.usage.input_tokens": 12000, "gen_ai.usage.output_tokens": 1450},
}
