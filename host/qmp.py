# SPDX-License-Identifier: BSD-2-Clause
"""The QEMU machine protocol: one command, one answer, over a unix socket."""

import json
import socket
import time

from errors import EXIT_PEER, SluiceError

CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 5


class Qmp:
    def __init__(self, path):
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._socket.connect(path)
                break
            except OSError as e:
                self._socket.close()
                if time.monotonic() > deadline:
                    raise SluiceError(EXIT_PEER, f"QEMU's control socket does not answer: {e.strerror}") from None
                time.sleep(0.01)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._file = self._socket.makefile("rwb")
        self._read()  # the greeting
        self.command("qmp_capabilities")

    def _read(self):
        try:
            line = self._file.readline()
        except OSError:
            line = b""
        if not line:
            raise SluiceError(EXIT_PEER, "QEMU closed its control socket")
        return json.loads(line)

    def command(self, execute, /, **arguments):
        """Returns the answer; events that come before it are not ours to read."""
        message = {"execute": execute}
        if arguments:
            message["arguments"] = arguments
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()
        while True:
            answer = self._read()
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise SluiceError(EXIT_PEER, f"QEMU refused {execute}: {answer['error'].get('desc')}")

    def close(self):
        self._file.close()
        self._socket.close()
