"""What every request passes before an engine may see it."""

import attrs
from msgspec.structs import replace

from vllmfront.engine._request import EngineRequest, SamplingParams
from vllmfront.engine.client.membership import EngineInfo, Membership
from vllmfront.engine.client.requests._known import KnownForm, KnownParams
from vllmfront.engine.guard import GuardLimits, check_request


class RequestChecks:
    """The guard, with what was configured and what the present engines said about themselves."""

    def __init__(self, limits: GuardLimits, membership: Membership) -> None:
        self._configured = limits
        self._limits = limits
        self._basis: EngineInfo | None = None
        self._membership = membership
        self._known = KnownParams()

    @property
    def limits(self) -> GuardLimits:
        info = self._membership.info
        if self._basis is not info:
            self._basis = info
            self._known.clear()
            least = [info.max_model_len, self._configured.max_model_len]
            self._limits = attrs.evolve(
                self._configured,
                max_model_len=min((one for one in least if one is not None), default=None),
                num_ranks=max(self._membership.ranks) + 1,
                lora_ids=self._membership.adapters.ids,
            )
        return self._limits

    def set_limits(self, limits: GuardLimits) -> None:
        """Check against *limits* from now on; the engines' own are added."""
        self._configured = limits
        self._basis = None

    def check(self, request: EngineRequest, limits: GuardLimits) -> KnownForm | None:
        """Check *request*; return what is known about its sampling parameters, if they are.

        Raises:
            RequestRejected: An engine could not survive it.
        """
        sampling = request.sampling
        known = self._known.find(sampling)
        if known is not None:
            check_request(request, limits, sampling_passed=True)
        else:
            check_request(_one_choice(request), limits)
            if sampling is not None and sampling.n == 1 and not request.prompt_embeds:
                known = self._known.add(sampling)
        return known

    def check_again(self, request: EngineRequest) -> None:
        """Check a request that is sent again: the engines may not be what they were.

        Raises:
            RequestRejected: One could not survive it.
        """
        check_request(request, self.limits)


def _one_choice(request: EngineRequest) -> EngineRequest:
    """Return *request* as its choices are sent, for the guard to look at; their seeds differ."""
    sampling = request.sampling
    if not isinstance(sampling, SamplingParams) or sampling.n == 1:
        return request
    return replace(request, sampling=replace(sampling, n=1))
