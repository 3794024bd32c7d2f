"""What one request says at the end of a step."""

import attrs

from vllmfront.engine import EngineOutput, FinishReason, Logprobs
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._sampling import describe_tokens
from vllmfront.simulator._script import Act
from vllmfront.simulator._sequence import Sequence
from vllmfront.simulator._tokens import TokenSource


@attrs.frozen
class Speaker:
    """Takes the next tokens of requests and puts them into outputs."""

    config: SimulatorConfig
    source: TokenSource

    def row(self, sequence: Sequence, act: Act | None) -> list[int] | EngineOutput | None:
        """Return what *sequence* says in one step, by *act* where it is scripted; None: nothing."""
        params = sequence.params
        first = not sequence.output
        states, tokens, reason, stop_reason = self._take_tokens(sequence, act)
        if act is not None and act.finish is not None:
            reason, stop_reason = act.finish, act.stop_reason
        error = act.error if act is not None else None
        if error is not None and reason is None:
            reason = FinishReason.ERROR
        if not tokens and reason is None:
            return None
        wants_prompt = params.prompt_logprobs is not None and not sequence.told_prompt_logprobs
        plain = not (first or sequence.events or sequence.prefill_stats or wants_prompt)
        if plain and reason is None and params.logprobs is None and not params.logprob_token_ids:
            return tokens
        logprobs = None
        if tokens and (params.logprobs is not None or params.logprob_token_ids):
            distributions = [self.source.distribution(state) for state in states]
            logprobs = describe_tokens(
                distributions, tokens, params.logprobs or 0, params.logprob_token_ids
            )
        output = EngineOutput(
            new_token_ids=tokens,
            logprobs=logprobs,
            prompt_logprobs=self._prompt_logprobs(sequence) if wants_prompt else None,
            finish_reason=reason,  # type: ignore[arg-type]  # scripts send unknown numbers, too
            stop_reason=stop_reason,
            events=tuple(sequence.events),
            prefill_stats=sequence.prefill_stats,
            kv_transfer_params=act.kv_transfer_params if act is not None else None,
            trace_headers=sequence.request.trace_headers,
            error=error if self.config.reports_errors else None,
        )
        sequence.events, sequence.prefill_stats = [], None
        return output

    def _take_tokens(
        self, sequence: Sequence, act: Act | None
    ) -> tuple[list[int], list[int], int | None, int | str | None]:
        """Return the states before each new token, the tokens, and why the request ends."""
        states: list[int] = []
        tokens: list[int] = []
        scripted = list(act.tokens) if act is not None else None
        wanted = len(scripted) if scripted is not None else self.config.tokens_per_output
        for index in range(wanted):
            if scripted is not None:
                token = scripted[index]
            elif sequence.acts is not None:
                if not sequence.said:
                    break
                token = sequence.said.popleft()
            else:
                token = sequence.sampler.next_token(sequence.state, sequence.output)
            states.append(sequence.state)
            tokens.append(token)
            sequence.output.append(token)
            sequence.state = self.source.extend(sequence.state, token)
            reason, stop_reason = sequence.finish_reason(self.config.max_model_len)
            if reason is not None:
                return states, tokens, reason, stop_reason
        return states, tokens, None, None

    def _prompt_logprobs(self, sequence: Sequence) -> Logprobs:
        """Score the prompt's tokens, each after those before it; the first has no score."""
        sequence.told_prompt_logprobs = True
        prompt = sequence.request.prompt_token_ids
        state = self.source.extend(sequence.origin, prompt[0])
        distributions = []
        for token in prompt[1:]:
            distributions.append(self.source.distribution(state))
            state = self.source.extend(state, token)
        return describe_tokens(distributions, prompt[1:], sequence.params.prompt_logprobs or 0)


def closing_act(sequence: Sequence) -> Act:
    """Return how a script ends that does not say so itself: with EOS, where the request has one."""
    eos = sequence.params.eos_token_id
    if eos is not None:
        return Act(tokens=(eos,))
    return Act(finish=FinishReason.STOP)
