# SPDX-License-Identifier: BSD-2-Clause
"""Exit codes, the same for the guest and for host/sluice, and the one exception that carries them."""

EXIT_OK = 0
EXIT_USAGE = 1  # usage or configuration
EXIT_PEER = 2  # peer, link, control channel or the machine itself failed
EXIT_THRESHOLD = 3  # a threshold that was asked for was missed
EXIT_INVALID = 4  # the measurement is not valid, or undecided
EXIT_DRIVER = 5  # a driver invariant broke
# As a shell has them for SIGINT and SIGPIPE: whoever started the command ended it.
EXIT_INTERRUPTED, EXIT_PIPE = 130, 141


class SluiceError(Exception):
    """A failure with a message of one line for the user, and the exit code that goes with it."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
