# SPDX-License-Identifier: BSD-2-Clause
"""A private copy of the disk image with the guest's configuration on its EFI system partition."""

import shutil
import struct
import uuid

import shell
from errors import EXIT_PEER, SluiceError

SECTOR_BYTES = 512
GPT_SIGNATURE = b"EFI PART"
ESP_TYPE = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b").bytes_le
COPY, CONFIG = "/run/sluice/disk.img", "/run/sluice/sluice.cfg"


def esp_offset_bytes(path):
    """Where the EFI system partition begins (UEFI 5.3: header in sector 1, entries where it says)."""
    with open(path, "rb") as f:
        f.seek(SECTOR_BYTES)
        header = f.read(92)
        if header[:8] != GPT_SIGNATURE:
            raise SluiceError(EXIT_PEER, f"{path} has no GUID partition table")
        entries_lba, count, size = struct.unpack_from("<QII", header, 72)
        f.seek(entries_lba * SECTOR_BYTES)
        for _ in range(min(count, 128)):
            entry = f.read(size)
            if entry[:16] == ESP_TYPE:
                return struct.unpack_from("<Q", entry, 32)[0] * SECTOR_BYTES
    raise SluiceError(EXIT_PEER, f"{path} has no EFI system partition")


def private_copy(image, config):
    """Returns the path of the copy, on the private tmpfs."""
    try:
        shutil.copyfile(image, COPY)
    except OSError as e:
        raise SluiceError(EXIT_PEER, f"{image}: {e.strerror}; `make image` builds it") from None
    with open(CONFIG, "w", encoding="utf-8") as f:
        f.write("\n".join(config) + "\n")
    shell.run("mcopy", "-o", "-i", f"{COPY}@@{esp_offset_bytes(COPY)}", CONFIG, "::/sluice.cfg")
    return COPY
