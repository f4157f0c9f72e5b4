# SPDX-License-Identifier: BSD-2-Clause
"""KVM or TCG: whether /dev/kvm is there proves nothing, so it is opened and asked for a virtual machine.

That still proves little where KVM runs without the CPU's help (paravirtual nesting): such a KVM creates machines and
then emulates their instructions, as far as it knows them. So vmx or svm must be among the CPU's flags, too.
"""

import fcntl
import os

from errors import EXIT_USAGE, SluiceError

KVM_GET_API_VERSION, KVM_CREATE_VM = 0xAE00, 0xAE01
KVM_API_VERSION = 12
CPUINFO = "/proc/cpuinfo"


def kvm_refusal():
    """None when KVM is usable, else why not, in words."""
    try:
        fd = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as e:
        return f"/dev/kvm: {e.strerror}"
    try:
        version = fcntl.ioctl(fd, KVM_GET_API_VERSION)
        if version != KVM_API_VERSION:
            return f"/dev/kvm: API version {version}, {KVM_API_VERSION} is needed"
        os.close(fcntl.ioctl(fd, KVM_CREATE_VM, 0))
    except OSError as e:
        return f"/dev/kvm: {e.strerror}"
    finally:
        os.close(fd)
    return None


def _cpu_helps():
    with open(CPUINFO, encoding="ascii", errors="replace") as f:
        flags = next((line.split() for line in f if line.startswith("flags")), [])
    return "vmx" in flags or "svm" in flags


def choose(wish):
    """Returns (accelerator, one line that says which and why) for a wish of auto, kvm or tcg."""
    if wish == "tcg":
        return "tcg", "tcg (asked for)"
    refusal = kvm_refusal()
    if refusal is None and not _cpu_helps():
        refusal = "/dev/kvm is there, but the CPU has neither vmx nor svm"
    if refusal is None:
        return "kvm", "kvm"
    if wish == "kvm":
        raise SluiceError(EXIT_USAGE, f"argument --accel: 'kvm' cannot work here: {refusal}; use --accel tcg")
    return "tcg", f"tcg ({refusal})"
