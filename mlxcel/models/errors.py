"""What can go wrong with a model on its way here. Each has an exit code of its own."""


class ModelError(Exception):
    """Something about a model went wrong. The message says what to do."""

    exit_code = 1


class ModelMissing(ModelError):
    """There is no model where one was asked for."""

    exit_code = 3


class FetchFailed(ModelError):
    """The package could not be downloaded."""

    exit_code = 4


class ChecksumWrong(ModelError):
    """What arrived is not the file that was pinned."""

    exit_code = 5


class NoSpace(ModelError):
    """The disk is full or can't be written to."""

    exit_code = 6


class NotConvertible(ModelError):
    """The file is no GGUF, or one of a kind that isn't handled."""

    exit_code = 7
