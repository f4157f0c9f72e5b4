# SPDX-License-Identifier: BSD-2-Clause
"""A guest without a test answers: ping, UDP and TCP echo, on both sides of the shaped NIC.

    guest (serve) --- tap0 --- br0 (10.77.0.254) --- veth0 (htb 100 Mbit/s, pfifo) --- veth1 in ext (10.77.0.1)
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
SERVE = """
    import os
    sys.path.insert(0, sys.argv[2])
    import wire
    from lab import GUEST_IP, PREFIX, Lab, LabSpec
    from vm import VmSpec

    answer = {}
    with Lab(LabSpec()), wire.Served(VmSpec(config=(f"ip={GUEST_IP}/{PREFIX}",), kernel=sys.argv[1])):
        for where in ("bridge", "ext"):
            if where == "ext":
                wire.enter_netns(where)
            answer[where] = {
                "ping": wire.ping(3),
                "udp": wire.udp_echo((1, 1472, 1473, 9000, 65507)),
                "tcp": wire.tcp_echo(4, 2000000),
            }
        answer["unread"] = wire.tcp_echo(1, 3000000, pause_s=3)
        answer["after"] = {"ping": wire.ping(2), "udp": wire.udp_echo((100,))}
        print(json.dumps(answer), flush=True)
        os._exit(0)  # the namespaces take the guest with them
"""


def test_echo(sluice, image):
    """Datagrams of every size and streams both ways at once come back as they went, however slow the way back is; a
    peer that does not read waits, and nobody else with it."""
    got = sluice.python(SERVE, image, HERE)
    for where in ("bridge", "ext"):
        assert got[where] == {"ping": 3, "udp": [True] * 5, "tcp": [True] * 4}, got
    assert got["unread"] == [True] and got["after"] == {"ping": 2, "udp": [True]}, got
