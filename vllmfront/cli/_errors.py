class UsageError(Exception):
    """Raised when the command line cannot be understood; exit status 2.

    ``usage`` is shown with it where the shape of the command is what is wrong.
    """

    def __init__(self, message: str, usage: str | None = None) -> None:
        super().__init__(message)
        self.usage = usage
