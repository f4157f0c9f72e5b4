# SPDX-License-Identifier: BSD-2-Clause
"""Something on the path breaks in mid-test: the cause is named, the exit code says so, within 10 s, nothing stays."""

import pytest
from conftest import wait_gone

pytestmark = pytest.mark.usefixtures("image")
AT_S, WITHIN_S = 1.0, 10.0
BOOT_AND_LAB_S = 2.5  # until the guest's first line, on a machine that has other work, too
PEER, INVALID = 2, 4


def broken(runner, protocol, *argv, code=PEER, words=(), within_s=AT_S + WITHIN_S):
    done = runner("run", protocol, "--time", "6", "--json", "-", *argv, timeout=60)
    assert done.code == code, done
    assert not done.json["ok"] and not any(r["valid"] for r in done.rows), done
    for word in words:
        assert word in done.json["verdict"], done
    assert done.seconds < within_s + BOOT_AND_LAB_S, done
    assert not wait_gone(done.mark)
    return done


@pytest.mark.parametrize("fault, word", [("nic", "veth0 is down"), ("server", "iperf3 server was killed")])
def test_breaks_while_receiving(sluice, fault, word):
    broken(sluice, "tcp", "--reverse", "--fault", f"{fault}@{AT_S}", words=[word])


def test_breaks_as_a_user(sluice_as):
    broken(sluice_as, "udp", "--fault", f"link@{AT_S}", words=["link"])


def test_link_that_comes_back_spoils_the_row(sluice):
    """The test may end, but the figures are those of a broken path."""
    broken(sluice, "udp", "--fault", "link@1:0.5", code=INVALID, words=["fault link"], within_s=20)
