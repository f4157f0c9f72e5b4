# SPDX-License-Identifier: BSD-2-Clause
"""The booted image against a real iperf3 server: every protocol and direction, and where each packet went.

    guest --> tap0 --> br0 --> veth0 (htb LINK, pfifo QUEUE) --> veth1: iperf3 -s        (host/lab.py)
"""

import pytest
from conftest import LINK_BPS, best_bps

# Payload's share of the link at 1024 bytes: headers and what Ethernet spends between frames.
UDP_1024_SHARE = 1024 / (1024 + 28 + 14 + 24)


def row_is_sound(row):
    assert row["valid"], row.get("invalid_reason")
    assert row["ledger_ok"], row["guest"]["ledger"]
    assert row["unexpected_full"] == 0 and row["requeues"] == 0
    assert row["tx_stops"] == row["tx_wakes"], "stopped at rest"
    assert row["guest"]["device_faults"] == {} or not any(row["guest"]["device_faults"].values())
    if row["test"] == "udp":
        assert row["unaccounted"] == 0 and row["frames"]["unaccounted"] == 0


def rows_of(done, code=0):
    assert done.code == code, done
    for row in done.rows:
        row_is_sound(row)
    return done.rows


def test_udp_with_the_limit_loses_nothing_at_the_nic(sluice_as, image):
    """Report A, the good half: as root and as an ordinary user."""
    (row,) = rows_of(sluice_as("run", "udp", "--time", "3", "--sndbuf", "1048576", "--json", "-"))
    assert row["nic_dropped"] == 0
    assert row["sent"] == row["received"] + row["receiver_dropped"] > 0
    assert best_bps(row["intervals"]) > 0.85 * LINK_BPS * UDP_1024_SHARE


def test_udp_without_the_limit_loses_most_at_the_nic(sluice, image):
    """Report A, the bad half: nobody upstream hears of the full queue. A link slow enough for any machine."""
    (row,) = rows_of(sluice("run", "udp", "--time", "2", "--link", "20mbit", "--sndbuf", "none", "--json", "-"))
    assert row["nic_dropped"] > 0.5 * row["sent"]
    assert row["sent"] == row["received"] + row["nic_dropped"] + row["receiver_dropped"]


@pytest.mark.parametrize("link", ["100mbit", "none"])
def test_tcp_out(sluice, image, link):
    (row,) = rows_of(sluice("run", "tcp", "--time", "3", "--link", link, "--json", "-"))
    assert best_bps(row["intervals"]) > 0.85 * LINK_BPS


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
@pytest.mark.parametrize("direction", ["--reverse", "--bidir"])
def test_the_other_directions(sluice, image, protocol, direction):
    rate = ["--rate", "20m"] if protocol == "udp" else []
    rows = rows_of(sluice("run", protocol, "--time", "2", direction, *rate, "--json", "-"))
    wanted = {"host-to-guest"} if direction == "--reverse" else {"guest-to-host", "host-to-guest"}
    assert {row["direction"] for row in rows} == wanted
    for row in rows:
        assert (row["received"] if protocol == "udp" else row["bits_per_second"]) > 0


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_eight_streams(sluice, image, protocol):
    rows = rows_of(sluice("run", protocol, "--time", "2", "--parallel", "8", "--json", "-"))
    assert len(rows) == 1
    if protocol == "udp":
        assert rows[0]["nic_dropped"] == 0


@pytest.mark.parametrize("size", [16, 64, 1472])
def test_datagram_sizes(sluice, image, size):
    """Small frames cost more host memory than they are long: a limit of 256 KiB keeps them below the queue."""
    (row,) = rows_of(sluice("run", "udp", "--time", "1", "--size", size, "--sndbuf", "262144", "--json", "-"))
    assert row["nic_dropped"] == 0 and row["sent"] == row["received"] + row["receiver_dropped"]


@pytest.mark.parametrize("size", [1473, 32768, 65507])
def test_fragmented_datagrams_arrive_whole(sluice, image, size):
    """A datagram is never cut because the ring filled."""
    (row,) = rows_of(sluice("run", "udp", "--time", "1", "--size", size, "--sndbuf", "1048576", "--json", "-"))
    assert row["nic_dropped"] == 0 and row["incomplete"] == 0
    assert row["received"] > 0


def test_a_rate_is_kept(sluice, image):
    (row,) = rows_of(sluice("run", "udp", "--time", "3", "--rate", "10m", "--json", "-"))
    assert row["sent"] == row["received"]
    assert row["sent_bits_per_second"] == pytest.approx(10e6, rel=0.03)


def test_capture_does_not_break_the_accounting(sluice, image, empty_dir):
    """A promiscuous capture on the bridge would; QEMU's own does not."""
    pcap = empty_dir / "run.pcap"
    (row,) = rows_of(sluice("run", "udp", "--time", "1", "--sndbuf", "1048576", "--pcap", pcap, "--json", "-"))
    assert row["nic_dropped"] == 0
    assert pcap.stat().st_size > row["sent"] * 1024


def test_dhcp(sluice, image):
    (row,) = rows_of(sluice("run", "udp", "--time", "1", "--ip", "dhcp", "--json", "-"))
    assert row["received"] > 0


@pytest.mark.parametrize("feature", ["indirect", "event_idx", "csum", "guest_csum", "tso", "guest_tso", "mrg"])
def test_without_a_feature(sluice, image, feature):
    """Each optional feature refused in turn (CORE-DRV-FEAT-08): traffic flows both ways."""
    option = ("--guest", f"virtio.{feature}=off", "--json", "-")
    for row in rows_of(sluice("run", "tcp", "--time", "1", "--link", "none", "--bidir", *option)):
        assert row["bits_per_second"] > 1e6, row


@pytest.mark.parametrize("option", ["csum=off", "mrg_rxbuf=off", "event_idx=off", "indirect_desc=off", "vectors=0"])
def test_a_device_without_a_feature(sluice, image, option):
    rows = rows_of(sluice("run", "udp", "--time", "1", "--device", option, "--json", "-"))
    assert rows[0]["received"] > 0 and rows[0]["nic_dropped"] == 0


@pytest.mark.parametrize("machine", ["pc"])
def test_machines(sluice, image, machine):
    (row,) = rows_of(sluice("run", "udp", "--time", "1", "--machine", machine, "--json", "-"))
    assert row["received"] > 0


def test_disk_image(sluice, disk_image):
    """OVMF boots the GPT disk image, and the same main runs."""
    (row,) = rows_of(sluice("run", "udp", "--time", "1", "--boot", "efi", "--json", "-", timeout=120))
    assert row["received"] > 0
