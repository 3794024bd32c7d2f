"""Options of ``serve`` about the model's files, and how text becomes tokens and back."""

from vllmfront.cli import _values as values
from vllmfront.cli._flag import Arity, Flag, Group

MODEL = Group(
    title="model, tokenizer, template",
    flags=(
        Flag(
            name="--revision",
            target="model.revision",
            metavar="REV",
            help="branch, tag or commit of the model on the hub",
        ),
        Flag(
            name="--tokenizer",
            target="model.tokenizer",
            metavar="MODEL",
            help="tokenizer of another model, or a folder",
        ),
        Flag(
            name="--tokenizer-revision",
            target="model.tokenizer_revision",
            metavar="REV",
            help="revision of the tokenizer; --revision when not given",
        ),
        Flag(
            name="--hf-config-path",
            target="model.config_path",
            metavar="MODEL",
            help="where config.json is, when not with the model",
        ),
        Flag(
            name="--hf-overrides",
            target="model.overrides",
            parse=values.json_object,
            metavar="JSON",
            help="merge patch (RFC 7396) on config.json; null removes a field",
        ),
        Flag(
            name="--generation-config",
            target="model.generation_config",
            parse=values.generation_config,
            metavar="SOURCE",
            help="sampling defaults: auto (the model's) or vllm (neutral)",
        ),
        Flag(
            name="--tokenizer-mode",
            parse=values.one_of("auto", "hf"),
            metavar="MODE",
            help="what turns chats into prompts: auto or hf, which both are the model's template",
        ),
        Flag(
            name="--chat-template",
            target="chat.template",
            metavar="TEMPLATE",
            help="file with a chat template, or the template itself",
        ),
        Flag(
            name="--chat-template-content-format",
            target="chat.content_format",
            parse=values.one_of("auto", "string", "openai"),
            metavar="FORMAT",
            help="how templates get message content: auto, string or openai",
        ),
        Flag(
            name="--default-chat-template-kwargs",
            target="chat.template_kwargs",
            parse=values.json_object,
            metavar="JSON",
            help="template variables; those of a request win",
        ),
        Flag(
            name="--trust-request-chat-template",
            target="chat.trust_request_template",
            arity=Arity.BOOL,
            help="allow a chat template in a request",
        ),
        Flag(
            name="--exclude-tools-when-tool-choice-none",
            target="chat.exclude_tools_when_none",
            arity=Arity.BOOL,
            help="hide tools from the template when tool_choice is none",
        ),
        Flag(
            name="--lora-modules",
            target="model.adapters",
            arity=Arity.MANY,
            parse=values.adapter,
            convert=values.adapters,
            metavar="MODULE",
            help="LoRA adapters to load before serving: name=path, or a JSON object with name, "
            "path and base_model_name; the engine needs --enable-lora",
        ),
        Flag(
            name="--language-model-only",
            arity=Arity.SWITCH,
            help="tell the engine that there is no multimodal input",
        ),
        Flag(
            name="--limit-mm-per-prompt",
            parse=values.item_limits,
            metavar="JSON",
            help="multimodal items per prompt, handed to the engine",
        ),
    ),
)

DECODING = Group(
    title="parsing and decoding",
    flags=(
        Flag(
            name="--tool-call-parser",
            target="decoding.tool_call_parser",
            metavar="NAME",
            help="auto or none",
        ),
        Flag(
            name="--reasoning-parser",
            target="decoding.reasoning_parser",
            metavar="NAME",
            help="auto or none",
        ),
        Flag(
            name="--structured-outputs-config",
            target="decoding.structured_outputs_backend",
            parse=values.structured_outputs,
            convert=lambda config: config.get("backend", "xgrammar"),
            metavar="JSON",
            help="we read backend, the engine the rest",
        ),
        Flag(
            name="--max-logprobs",
            target="decoding.max_logprobs",
            parse=values.integer(-1, 2**31 - 1),
            metavar="N",
            help="most log probabilities a position; -1: no cap",
        ),
        Flag(
            name="--stream-interval",
            target="decoding.stream_interval",
            parse=values.integer(1, 2**31 - 1),
            metavar="N",
            help="tokens that a streamed chunk waits for",
        ),
        Flag(
            name="--return-tokens-as-token-ids",
            target="decoding.return_tokens_as_token_ids",
            arity=Arity.BOOL,
            help="show tokens of log probabilities as token_id:N",
        ),
    ),
)
