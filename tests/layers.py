#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""The direction of every #include, checked.

    apps -> net -> drivers -> boot          each may use itself and what stands to its right
    drivers/virtqueue*   -> ring_trace.h, boot/cpu.h, boot/panic.h, itself
    drivers/virtio_net*  -> virtqueue*, virtio transports, itself; not pci
    virtio transports    -> pci
    lwIP                 only net/
    tests/, host/        use the product, and the product never uses them

Exit code 1 and one line for each include that goes elsewhere. With --self-test, checks the checker.
"""

import fnmatch
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ("boot", "drivers", "net", "apps")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')

# What a file of this name may include of drivers/ and boot/. The first pattern that fits decides.
DRIVER_RULES = (
    ("ring_trace*", ("ring_trace*",), ("clock.h", "cpu.h", "mem.h")),
    ("virtqueue*", ("virtqueue*", "ring_trace.h"), ("cpu.h", "panic.h")),
    ("virtio_net*", ("virtqueue*", "virtio_*"), ("*",)),
    ("virtio_*", ("virtqueue*", "virtio_*", "pci*"), ("*",)),
    ("pci*", ("pci*",), ("*",)),
)


def target_of(name, folder):
    """(layer, file) of an include of ours, None for others. A bare name is looked for beside the file first."""
    head, _, tail = name.partition("/")
    if head in LAYERS + ("tests", "host") and tail:
        return head, tail
    for layer in (folder,) + LAYERS:
        if os.path.exists(os.path.join(ROOT, layer, name)):
            return layer, name
    return None


def fault(folder, file, name, system):
    """Why `folder/file` may not include `name`; None: it may."""
    if name.startswith(("lwip/", "netif/")):
        return None if folder == "net" else "only net/ includes lwIP"
    target = None if system else target_of(name, folder)
    if target is None:
        return None
    layer, other = target
    if layer not in LAYERS:
        return "the product does not use tests or host tools"
    if LAYERS.index(layer) > LAYERS.index(folder):
        return f"{folder} stands below {layer}"
    if folder != "drivers":
        return None
    for pattern, drivers, boot in DRIVER_RULES:
        if fnmatch.fnmatch(file, pattern):
            allowed = {"drivers": drivers, "boot": boot}[layer]
            if any(fnmatch.fnmatch(other, one) for one in allowed):
                return None
            return f"{pattern} may use of {layer}/ only {', '.join(allowed)}"
    return "a file of drivers/ that no rule covers"


def check():
    faults = 0
    for folder in LAYERS:
        for parent, _, files in os.walk(os.path.join(ROOT, folder)):
            for file in sorted(files):
                if not file.endswith((".c", ".h", ".S")):
                    continue
                path = os.path.join(parent, file)
                with open(path, encoding="utf-8") as text:
                    for number, line in enumerate(text, 1):
                        match = INCLUDE.match(line)
                        if not match:
                            continue
                        name = match.group(1) or match.group(2)
                        why = fault(folder, file, name, match.group(1) is None)
                        if why:
                            print(f"{os.path.relpath(path, ROOT)}:{number}: includes {name}: {why}")
                            faults += 1
    return faults


def self_test():
    """Each rule must refuse what it is there for, and let pass what stands beside it."""
    refused = (
        ("boot", "mem.c", "drivers/pci.h"),
        ("drivers", "virtio_net.c", "net/net.h"),
        ("drivers", "virtio_net.c", "drivers/pci.h"),
        ("drivers", "virtqueue_split.c", "boot/clock.h"),
        ("drivers", "virtqueue_split.c", "drivers/virtio_net.h"),
        ("drivers", "pci.c", "drivers/virtio_pci.h"),
        ("drivers", "virtio_net_tx.c", "lwip/pbuf.h"),
        ("apps", "blaster.c", "lwip/udp.h"),
        ("net", "net.c", "apps/report.h"),
        ("net", "net.c", "tests/device/seams.h"),
    )
    passed = (
        ("apps", "main.c", "net/net.h"),
        ("net", "net.c", "lwip/udp.h"),
        ("net", "net.c", "drivers/virtio_net.h"),
        ("drivers", "virtio_pci.c", "drivers/pci.h"),
        ("drivers", "virtqueue_split.c", "boot/cpu.h"),
        ("drivers", "virtio_net.c", "drivers/virtqueue.h"),
        ("boot", "mem.c", "string.h"),
    )
    wrong = [case for case in refused if not fault(*case, False)]
    wrong += [case for case in passed if fault(*case, False)]
    for case in wrong:
        print(f"self-test: wrong verdict on {case}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if self_test() or (sys.argv[1:] != ["--self-test"] and check()) else 0)
