"""The costs of model calls in US dollars, by given prices or else by the list of `genai-prices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

from arbiter._values.parameters import Param
from arbiter._values.states import is_number
from arbiter.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. `cached` is for input from the provider's cache; None: the same as
    `input`.
    """

    input: Annotated[float, Param("US dollars for a million tokens of input")]
    output: Annotated[float, Param("US dollars for a million tokens of output")]
    cached: Annotated[
        float | None,
        Param("US dollars for a million tokens of input from the provider's cache; by default as `input`"),
    ] = None


Prices = Annotated[
    Mapping[str, Price] | None,
    Param(
        "by model name: US dollars for a million tokens, `input`, `output`, and `cached` for input from the provider's "
        "cache; other models have the prices of the package genai-prices",
        min_length=1,
        expected="models with their prices",
    ),
]


def prices_of(owner: str, given: Mapping[str, Price | Mapping[str, Any]]) -> dict[str, Price]:
    """The prices of models by name, from `Price` objects or mappings. Raises `ParameterError`."""
    return {model: _price(owner, f"prices[{model!r}]", price) for model, price in given.items()}


def _price(owner: str, where: str, given: Price | Mapping[str, Any]) -> Price:
    if not isinstance(given, Price):
        try:
            given = Price(**given)
        except TypeError:
            problem = f"expected input and output, and optionally cached, got {given!r:.80}."
            raise ParameterError(owner, where, problem) from None
    for part in ("input", "output", "cached"):
        value: Any = getattr(given, part)
        if part == "cached" and value is None:
            continue
        if not is_number(value) or value < 0:
            problem = f"expected US dollars per million tokens, got {value!r}."
            raise ParameterError(owner, f"{where}.{part}", problem)
    return given


def need_price_list(owner: str, parameter: str) -> None:
    """Raise a `ParameterError` if there is no price list."""
    if find_spec("genai_prices") is None:
        raise ParameterError(
            owner, parameter, "prices are not known. pip install 'arbiteros[prices]', or give prices=."
        )


def dollars(
    model: str, usage: Mapping[str, Any], prices: Mapping[str, Price], provider: str | None = None
) -> float | None:
    """The cost of a call, from LangChain's `usage_metadata`; None if there is no price for that model.

    `prices` come first; `provider` is LangChain's name of the provider, if known.
    """
    into: Mapping[str, int | None] = usage.get("input_token_details") or {}
    read = into.get("cache_read") or 0
    price = prices.get(model)
    if price is None:
        return _listed(model, usage, read, into, provider)
    rate = price.input if price.cached is None else price.cached
    fresh: int = usage["input_tokens"] - read
    made: int = usage["output_tokens"]
    return (fresh * price.input + read * rate + made * price.output) / 1e6


def _listed(
    model: str, usage: Mapping[str, Any], read: int, into: Mapping[str, int | None], provider: str | None
) -> float | None:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    written = sum(
        tokens or 0
        for key, tokens in into.items()
        if key == "cache_creation" or key.startswith("ephemeral_")  # Anthropic's, by lifetime
    )
    used = Usage(
        input_tokens=usage["input_tokens"],
        cache_read_tokens=read or None,
        cache_write_tokens=written or None,
        output_tokens=usage["output_tokens"],
    )
    for provider_id in dict.fromkeys((provider, None)):
        try:
            return float(calc_price(used, model, provider_id=provider_id).total_price)
        except (LookupError, ValueError):
            continue  # the price list may use another name for the provider
    return None
