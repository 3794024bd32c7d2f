"""Whether a template wants message contents as strings or as lists of parts."""

import enum


class ContentFormat(enum.Enum):
    """How a template sees the content of messages."""

    AUTO = "auto"
    """Look at the template."""

    STRING = "string"
    OPENAI = "openai"
