# SPDX-License-Identifier: BSD-2-Clause
"""The booted guest for tests of field cases about devices, machines and hosts: what their scripts inside the namespaces
begin with, and what a row of a driver that saw nothing wrong looks like.
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
PRELUDE = """
    import os, select, socket, struct, threading, time
    from dataclasses import replace
    sys.path.insert(0, sys.argv[2])
    import shell, vm as vm_module, wire
    from lab import EXT_IP, GUEST_IP, GUEST_MAC, PREFIX, Lab, LabSpec
    from rows import Test, guest_words, run_test
    from vm import VM, VmSpec

    STATIC = f"ip={GUEST_IP}/{PREFIX}"
    ARP = 0x0806
    def spec(*config, **more):
        return VmSpec(config=config or (STATIC,), kernel=sys.argv[1], mac=more.pop("mac", GUEST_MAC), **more)
    def answer(value):
        print(json.dumps(value), flush=True)
        os._exit(0)  # the namespaces take the rest with them
    def measure(lab, *options, protocol="tcp", time_s=1, **more):
        test = {key: more.pop(key) for key in ("parallel", "bidir", "sndbuf_bytes") if key in more}
        vm = spec(device_options=options, **more)
        return run_test(lab, Test(protocol=protocol, time_s=time_s, vm=vm, **test))

    class Announcements:
        "Times at which an address was announced on the bridge: asked for by itself (ARP), or by its host (RARP)."
        def __init__(self):
            self.times = {ARP: [], 0x8035: []}
            self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self._sock.bind(("br0", 3))
            threading.Thread(target=self._listen, daemon=True).start()
        def _listen(self):
            while True:
                frame = self._sock.recv(2048)
                kind = struct.unpack("!H", frame[12:14])[0]
                ours = frame[28:32] == frame[38:42] == socket.inet_aton(GUEST_IP)
                if kind == 0x8035 or kind == ARP and ours and frame[22:28].hex(":") == GUEST_MAC:
                    self.times[kind].append(time.monotonic())
        def after(self, since, kind=ARP, within_s=1.0):
            while time.monotonic() < since + within_s:
                if any(at >= since for at in self.times[kind]):
                    return True
                time.sleep(0.02)
            return False

    class Qtest:
        "Writes to ports of the machine, which stand for what its firmware or a person at its chassis does."
        words = ("-qtest", "unix:/run/sluice/qtest.sock,server=on,wait=off", "-qtest-log", "/dev/null")
        def outl(self, port, value):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect("/run/sluice/qtest.sock")
                sock.sendall(f"outl {port:#x} {value:#x}\\n".encode())
                sock.recv(64)
    EJECT_BUS, EJECT_SLOTS = 0xae10, 0xae08  # of the machine "pc" (docs/specs/acpi_pci_hotplug of QEMU)
    def eject(vm, name, slot):
        vm.qmp.command("device_del", id=name)
        qtest = Qtest()
        qtest.outl(EJECT_BUS, 0)
        qtest.outl(EJECT_SLOTS, 1 << slot)
"""


def inside(sluice, image, source, *argv, timeout=90):
    return sluice.python(PRELUDE + source, image, HERE, *map(str, argv), timeout=timeout)


def clean(row):
    """A valid row of a driver that saw its device do nothing wrong."""
    assert row["valid"] and row["ledger_ok"], row
    assert row["unexpected_full"] == row["requeues"] == 0 and row["tx_stops"] == row["tx_wakes"], row
    assert not any(row["guest"]["device_faults"].values()), row


def flows(row):
    clean(row)
    assert row["bits_per_second"] > 1e6, row
