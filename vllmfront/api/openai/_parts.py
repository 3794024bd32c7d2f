"""What the routes of completions share."""

import attrs

from vllmfront.api.openai._held_heads import HeldHeads
from vllmfront.api.openai._keep_alive import KeepAlives
from vllmfront.api.openai._offload import Offload
from vllmfront.api.openai._service import ServiceSlot


@attrs.frozen(kw_only=True)
class RouteParts:
    """Made once, for all of them."""

    slot: ServiceSlot
    offload: Offload
    heads: HeldHeads
    keep_alives: KeepAlives | None
