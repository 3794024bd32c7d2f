"""What does not change over the runs of a supervisor, as a frozen value."""

from collections.abc import Callable, Sequence

import attrs

from vllmfront.supervisor._events import Event
from vllmfront.supervisor._policy import RestartPolicy
from vllmfront.supervisor._shutdown import Shutdown
from vllmfront.supervisor._spec import ChildSpec
from vllmfront.supervisor._strategy import Strategy


@attrs.frozen(kw_only=True)
class Plan:
    """Everything that a run of a supervisor is made from."""

    name: str
    specs: Sequence[ChildSpec]
    policy: RestartPolicy
    strategy: Strategy
    shutdown: Shutdown
    random: Callable[[], float]
    emit: Callable[[Event], None]
