"""The one place that keeps requests from engines which would not survive them."""

from vllmfront.engine.guard._adapt import adapt_request
from vllmfront.engine.guard._checks import are_token_ids, check_integer
from vllmfront.engine.guard._limits import GuardLimits
from vllmfront.engine.guard._request import check_request

__all__ = ["GuardLimits", "adapt_request", "are_token_ids", "check_integer", "check_request"]
