"""Language models: requests for a value, prompts with quoted text, and the costs of calls."""

from arbiter.models._asking import (
    MAX_ANSWER,
    MAX_REQUESTS,
    WHOLE,
    Answer,
    ChatModel,
    Reply,
    aask,
    areply,
    as_text,
    ask,
    described,
    model_of,
    quote,
    visible,
)
from arbiter.models._json import extract_json, json_values, no_constant, whole
from arbiter.models._prices import Price, Prices, dollars, need_price_list, prices_of

__all__ = [
    "Answer",
    "ChatModel",
    "MAX_ANSWER",
    "MAX_REQUESTS",
    "Price",
    "Prices",
    "Reply",
    "WHOLE",
    "aask",
    "areply",
    "as_text",
    "ask",
    "described",
    "dollars",
    "extract_json",
    "json_values",
    "model_of",
    "need_price_list",
    "no_constant",
    "prices_of",
    "quote",
    "visible",
    "whole",
]
