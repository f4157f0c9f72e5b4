/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The EFI loader, BOOTX64.EFI: an application of its own, with the whole image inside. It puts the
 * image where it was linked, reads the configuration, takes the memory map, ends the firmware's
 * rule and jumps. Section numbers are those of UEFI 2.10.
 */
#include <efi.h>
#include <efilib.h>
#include <elf.h>

#include "boot/boot_info.h"
#include "boot/cmdline.h"
#include "boot/memmap.h"
#include "boot/x86.h"

/* efi_blob.S: the linked image. */
extern const UINT8 efi_blob[], efi_blob_end[];

/* What the image is handed must lie where its first page tables reach (entry_pvh.S). */
#define HANDOFF_BELOW 0x40000000ull

/* A map grows when memory for it is allocated, and may change between reading it and leaving
 * (7.4.6). */
#define MAP_SPARE_ENTRIES 16u
#define EXIT_TRIES        8

#define CONFIG_NAME L"\\sluice.cfg"

struct handoff {
    struct boot_info info;
    char cmdline[BOOT_CMDLINE_BYTES];
};

typedef void (*image_entry)(const struct boot_info *info);

static EFI_STATUS fail(const CHAR16 *what, EFI_STATUS status)
{
    Print((CHAR16 *)L"sluice: %s: %r\n", what, status);
    return status;
}

/* Loads the segments and gives the entry. The whole span is one allocation: the zeroed part has no
 * file behind it. */
static EFI_STATUS load_image(image_entry *entry)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)efi_blob;
    const Elf64_Phdr *segments = (const Elf64_Phdr *)(efi_blob + header->e_phoff);
    UINT64 start = UINT64_MAX, end = 0;
    for (UINTN i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD) {
            start = segments[i].p_paddr < start ? segments[i].p_paddr : start;
            UINT64 segment_end = segments[i].p_paddr + segments[i].p_memsz;
            end = segment_end > end ? segment_end : end;
        }
    }
    EFI_PHYSICAL_ADDRESS address = start;
    EFI_STATUS status =
        BS->AllocatePages(AllocateAddress, EfiLoaderCode, EFI_SIZE_TO_PAGES(end - start), &address);
    if (EFI_ERROR(status)) {
        Print((CHAR16 *)L"sluice: the firmware uses memory between 0x%lx and 0x%lx, where the "
                        L"image belongs: %r\n",
              start, end, status);
        return status;
    }
    SetMem((void *)start, end - start, 0);
    for (UINTN i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD) {
            CopyMem((void *)segments[i].p_paddr, efi_blob + segments[i].p_offset,
                    segments[i].p_filesz);
        }
    }
    *entry = (image_entry)header->e_entry;
    return EFI_SUCCESS;
}

/* The configuration file in the root of the volume that the loader came from. Having none is no
 * error. */
static EFI_STATUS read_config(EFI_LOADED_IMAGE *loaded, char *cmdline)
{
    EFI_FILE_IO_INTERFACE *volume;
    EFI_FILE_HANDLE root, file;
    EFI_GUID protocol = SIMPLE_FILE_SYSTEM_PROTOCOL;
    /* Loaded over a network, there is no volume. */
    if (EFI_ERROR(BS->HandleProtocol(loaded->DeviceHandle, &protocol, (void **)&volume)) ||
        EFI_ERROR(volume->OpenVolume(volume, &root))) {
        return EFI_SUCCESS;
    }
    EFI_STATUS status = root->Open(root, &file, CONFIG_NAME, EFI_FILE_MODE_READ, 0);
    if (!EFI_ERROR(status)) {
        /* Larger by one than what is allowed, so that too much is seen and not cut off. */
        static char text[4 * BOOT_CMDLINE_BYTES + 1];
        UINTN bytes = sizeof(text);
        status = file->Read(file, &bytes, text);
        if (!EFI_ERROR(status) &&
            (bytes == sizeof(text) || !cmdline_append(cmdline, BOOT_CMDLINE_BYTES, text, bytes))) {
            status = EFI_BUFFER_TOO_SMALL;
        }
        file->Close(file);
    } else if (status == EFI_NOT_FOUND) {
        status = EFI_SUCCESS;
    }
    root->Close(root);
    return EFI_ERROR(status) ? fail(CONFIG_NAME, status) : EFI_SUCCESS;
}

/* Load options (9.1): the shell puts the command's own name first, boot managers put data of their
 * own there. */
static EFI_STATUS read_options(EFI_LOADED_IMAGE *loaded, char *cmdline)
{
    static char text[BOOT_CMDLINE_BYTES];
    const CHAR16 *options = loaded->LoadOptions;
    UINTN count = loaded->LoadOptionsSize / sizeof(CHAR16);
    UINTN used = 0, words = 0;
    for (UINTN i = 0; i < count && options[i] != 0; i++) {
        if (options[i] < ' ' || options[i] > '~' || used == sizeof(text)) {
            return EFI_SUCCESS;
        }
        text[used++] = (char)options[i];
        words += options[i] == '=';
    }
    if (words == 0) {
        return EFI_SUCCESS;
    }
    UINTN start = 0;
    UINTN name_end = 0;
    while (name_end < used && text[name_end] != ' ' && text[name_end] != '=') {
        name_end++;
    }
    if (name_end < used && text[name_end] == ' ') {
        start = name_end;
    }
    if (!cmdline_append(cmdline, BOOT_CMDLINE_BYTES, text + start, used - start)) {
        return fail(L"load options", EFI_BUFFER_TOO_SMALL);
    }
    return EFI_SUCCESS;
}

static UINT64 find_rsdp(EFI_SYSTEM_TABLE *system)
{
    EFI_GUID acpi2 = ACPI_20_TABLE_GUID, acpi1 = ACPI_TABLE_GUID;
    UINT64 rsdp = 0;
    for (UINTN i = 0; i < system->NumberOfTableEntries; i++) {
        EFI_CONFIGURATION_TABLE *table = &system->ConfigurationTable[i];
        if (CompareGuid(&table->VendorGuid, &acpi2) == 0) {
            return (UINT64)table->VendorTable;
        }
        if (CompareGuid(&table->VendorGuid, &acpi1) == 0) {
            rsdp = (UINT64)table->VendorTable;
        }
    }
    return rsdp;
}

/* Only what the image may use is handed on; 7.2, table 7.10: what is free once boot services have
 * ended. */
static void add_memory(struct boot_info *info, const EFI_MEMORY_DESCRIPTOR *descriptor)
{
    switch (descriptor->Type) {
    case EfiConventionalMemory:
    case EfiLoaderCode:
    case EfiLoaderData:
    case EfiBootServicesCode:
    case EfiBootServicesData:
        memmap_add(info->memory, &info->memory_count, descriptor->PhysicalStart,
                   descriptor->NumberOfPages * EFI_PAGE_SIZE, BOOT_MEMORY_RAM);
        break;
    default:
        break;
    }
}

/* After the first failed try only the memory map may still be asked for (7.4.6); so the buffer is
 * made before. */
static EFI_STATUS leave_firmware(EFI_HANDLE image, struct boot_info *info)
{
    UINTN bytes = 0, key, descriptor_bytes;
    UINT32 version;
    BS->GetMemoryMap(&bytes, NULL, &key, &descriptor_bytes, &version);
    UINTN capacity = bytes + MAP_SPARE_ENTRIES * descriptor_bytes;
    UINT8 *map;
    EFI_STATUS status = BS->AllocatePool(EfiLoaderData, capacity, (void **)&map);
    if (EFI_ERROR(status)) {
        return status;
    }
    for (int try = 0; try < EXIT_TRIES; try++) {
        bytes = capacity;
        status = BS->GetMemoryMap(&bytes, (EFI_MEMORY_DESCRIPTOR *)map, &key, &descriptor_bytes,
                                  &version);
        if (!EFI_ERROR(status)) {
            status = BS->ExitBootServices(image, key);
        }
        if (!EFI_ERROR(status)) {
            break;
        }
    }
    if (EFI_ERROR(status)) {
        return status;
    }
    for (UINTN at = 0; at + descriptor_bytes <= bytes; at += descriptor_bytes) {
        add_memory(info, (const EFI_MEMORY_DESCRIPTOR *)(map + at));
    }
    return EFI_SUCCESS;
}

EFI_STATUS efi_main(EFI_HANDLE image, EFI_SYSTEM_TABLE *system)
{
    UINT64 tsc_at_entry = x86_rdtsc();
    InitializeLib(image, system);
    EFI_LOADED_IMAGE *loaded;
    EFI_GUID loaded_image = LOADED_IMAGE_PROTOCOL;
    EFI_STATUS status = BS->HandleProtocol(image, &loaded_image, (void **)&loaded);
    if (EFI_ERROR(status)) {
        return fail(L"loaded image protocol", status);
    }
    image_entry entry;
    status = load_image(&entry);
    if (EFI_ERROR(status)) {
        return status;
    }
    EFI_PHYSICAL_ADDRESS address = HANDOFF_BELOW - 1;
    status = BS->AllocatePages(AllocateMaxAddress, EfiLoaderData,
                               EFI_SIZE_TO_PAGES(sizeof(struct handoff)), &address);
    if (EFI_ERROR(status)) {
        return fail(L"no memory below 1 GiB", status);
    }
    struct handoff *handoff = (struct handoff *)address;
    SetMem(handoff, sizeof(*handoff), 0);
    status = read_config(loaded, handoff->cmdline);
    if (!EFI_ERROR(status)) {
        status = read_options(loaded, handoff->cmdline);
    }
    if (EFI_ERROR(status)) {
        return status;
    }
    handoff->info.path = BOOT_EFI;
    handoff->info.tsc_at_entry = tsc_at_entry;
    handoff->info.cmdline = handoff->cmdline;
    handoff->info.rsdp = find_rsdp(system);
    status = leave_firmware(image, &handoff->info);
    if (EFI_ERROR(status)) {
        return fail(L"leaving boot services", status);
    }
    entry(&handoff->info);
    return EFI_LOAD_ERROR;
}
