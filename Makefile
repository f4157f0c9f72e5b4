# SPDX-License-Identifier: BSD-2-Clause
#
# sluice: one Makefile for the image, the host test builds and every check. `make help` lists the targets.
#
# A .c file dropped into boot/, drivers/, net/ or apps/ is part of the image; into tests/unit/ as test_*.c, a test.

.SUFFIXES:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# Make splits names at blanks, so such a path cannot work; say so instead of failing somewhere inside.
ifneq ($(words $(CURDIR)),1)
$(error sluice cannot be built in a path with blanks: "$(CURDIR)")
endif

# ---------------------------------------------------------------- what there is

B := build
CC := gcc
CLANG ?= clang
PYTHON := /usr/bin/python3

IMAGE_ELF := $(B)/sluice.elf
IMAGE_EFI := $(B)/BOOTX64.EFI
IMAGE_DISK := $(B)/sluice.img

BOOT_C := $(filter-out boot/efi_main.c,$(wildcard boot/*.c))
BOOT_S := $(filter-out boot/efi_blob.S,$(wildcard boot/*.S))
DRIVERS_C := $(wildcard drivers/*.c)
NET_C := $(wildcard net/*.c)
APPS_C := $(wildcard apps/*.c)
DEVICE_C := $(wildcard tests/device/*.c)
UNIT_C := $(wildcard tests/unit/test_*.c)
FUZZ_C := $(wildcard tests/fuzz/fuzz_*.c)

# Parts of boot/ that are plain computation, and so are unit tested on the host too.
BOOT_PURE_C := $(wildcard boot/acpi_tables.c boot/memmap.c boot/cmdline.c boot/timescale.c boot/symbols.c)

# lwIP as sluice uses it: NO_SYS, IPv4, Ethernet. Without net/lwipopts.h it cannot be compiled at all.
LWIP := $(B)/deps/lwip/src
LWIP_C := $(if $(wildcard net/lwipopts.h),$(addprefix $(LWIP)/, \
    core/def.c core/dns.c core/inet_chksum.c core/init.c core/ip.c core/mem.c core/memp.c core/netif.c \
    core/pbuf.c core/raw.c core/stats.c core/sys.c core/tcp.c core/tcp_in.c core/tcp_out.c core/timeouts.c \
    core/udp.c core/ipv4/acd.c core/ipv4/autoip.c core/ipv4/dhcp.c core/ipv4/etharp.c core/ipv4/icmp.c \
    core/ipv4/igmp.c core/ipv4/ip4.c core/ipv4/ip4_addr.c core/ipv4/ip4_frag.c netif/ethernet.c))
CJSON := $(B)/deps/cjson
CJSON_C := $(CJSON)/cJSON.c
FOREIGN_C := $(LWIP_C) $(CJSON_C)

NEWLIB := $(B)/newlib/x86_64-elf
FETCHED := $(B)/deps/.fetched
NEWLIB_BUILT := $(B)/newlib/.built
# Written by the fetch when it unpacks a dependency anew, and only then.
UNPACKED := $(B)/deps/lwip/.sluice-file $(B)/deps/cjson/.sluice-file
NEWLIB_UNPACKED := $(B)/deps/newlib/.sluice-file

# What a library or the image consists of is part of what it is made from: a source that goes away makes it anew.
SOURCES_LIST := $(B)/.sources
ALL_C := $(sort $(BOOT_C) $(BOOT_S) $(DRIVERS_C) $(NET_C) $(APPS_C) $(DEVICE_C) $(FOREIGN_C))
$(shell mkdir -p $(B); echo '$(ALL_C)' | cmp -s - $(SOURCES_LIST) || echo '$(ALL_C)' >$(SOURCES_LIST))

.PHONY: all run check check-long unit system lint image clean help deps model mutants fuzz fuzz-short fuzz-speed \
    interleavings long
all: $(IMAGE_ELF) image

help:
	@echo 'make             the image: $(IMAGE_ELF), $(IMAGE_EFI), $(IMAGE_DISK)'
	@echo 'make run         boot it and blast UDP and TCP through a shaped link (host/sluice demo)'
	@echo 'make check       lint, unit and system tests; ends with "N passed, N failed, N skipped"'
	@echo 'make check-long  check, then model, mutants, interleavings and fuzz'
	@echo 'make unit        unit tests on the host, with address and undefined behaviour sanitizers'
	@echo 'make system      tests of the booted image, without the long ones of check-long'
	@echo 'make lint        clang build, format, clang-tidy, cppcheck, shellcheck, layers, sizes'
	@echo 'make model       exhaustive model of the stop/wake protocol'
	@echo 'make mutants     breaks the driver on purpose: every mutant must be caught'
	@echo 'make fuzz        fuzzers, FUZZ_SECONDS=$(FUZZ_SECONDS) each'
	@echo 'make image       EFI loader and GPT disk image'
	@echo 'make deps        fetch and build what the image needs from outside'
	@echo 'make clean       remove build/ but not the fetched sources (rm -r build for all)'
	@echo 'SLUICE_DISTFILES=DIR  take the sources of third_party/pins from DIR instead of the Debian mirror'

# ---------------------------------------------------------------- flags

WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Werror
C_STANDARD := -std=gnu17
# Our headers by path from the root ("drivers/virtio_net.h"), lwIP's configuration out of net/; foreign headers
# as system headers, so that their warnings stay theirs.
INCLUDES := -iquote . -iquote net -isystem $(LWIP)/include -isystem $(CJSON)

# The image has one address space, is linked at its own address, and takes interrupts on the running stack: hence
# no PIC and no red zone. Frame pointers carry the panic backtrace.
IMAGE_MACHINE := -m64 -mno-red-zone -fno-pic -fno-pie -mcmodel=small -fcf-protection=none -fno-stack-protector \
    -fno-asynchronous-unwind-tables -ffunction-sections -fdata-sections -fno-omit-frame-pointer
# newlib has the type but not its limit, by whose absence lwIP decides to define the type itself.
IMAGE_CFLAGS := $(C_STANDARD) -O2 -g $(IMAGE_MACHINE) -DSSIZE_MAX=__LONG_MAX__ -nostdinc \
    -isystem $(shell $(CC) -print-file-name=include) -isystem $(NEWLIB)/include $(INCLUDES)

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined
HOST_CFLAGS := $(C_STANDARD) -O1 -g -DSLUICE_MODEL -fno-omit-frame-pointer -D_GNU_SOURCE $(INCLUDES)
HOST_LIBS := $(addprefix $(B)/host/,libapps.a libnet.a libdevice.a libdrivers.a libboot.a)

FUZZ_SECONDS ?= 60

# ---------------------------------------------------------------- dependencies

deps: $(NEWLIB_BUILT)

$(FETCHED): third_party/pins host/fetch
	@mkdir -p $(@D)
	host/fetch $(B)/deps
	@touch $@

# Made by the fetch; nothing to run for them. Order-only, so that they are never older than it.
$(FOREIGN_C): | $(FETCHED) ;
$(UNPACKED) $(NEWLIB_UNPACKED): | $(FETCHED) ;

# Full stdio with floating point, no wide characters, no system calls of its own. Compiled as the image is, above
# all without a red zone.
$(NEWLIB_BUILT): $(NEWLIB_UNPACKED)
	@echo 'building newlib (a minute)'
	@new=$(CURDIR)/$(B)/newlib.new.$$$$; rm -rf $$new && mkdir -p $$new/obj && cd $$new/obj && { \
	    $(CURDIR)/$(B)/deps/newlib/newlib/configure --host=x86_64-elf --prefix=$$new \
	        CC='$(CC)' AR=ar RANLIB=ranlib AS=as LD=ld NM=nm STRIP=strip OBJCOPY=objcopy READELF=readelf \
	        --disable-multilib --disable-newlib-supplied-syscalls --disable-newlib-mb --disable-newlib-wide-orient \
	        --enable-newlib-io-long-long --enable-newlib-io-c99-formats --enable-newlib-global-atexit \
	        CFLAGS='-O2 $(IMAGE_MACHINE)' && \
	    $(MAKE) && $(MAKE) install; } >../build.log 2>&1 || { tail -n 30 ../build.log >&2; exit 1; }; \
	rm -rf $$new/obj $(CURDIR)/$(B)/newlib && mv $$new $(CURDIR)/$(B)/newlib
	@touch $@

# ---------------------------------------------------------------- objects

# $(call objects,VARIANT,SOURCES): where the objects of one variant (image, host, fuzz) lie.
objects = $(patsubst $(B)/deps/%.c,$(B)/$(1)/deps/%.o,$(patsubst %,$(B)/$(1)/%,$(patsubst %.S,%.o,$(patsubst %.c,%.o,$(filter-out $(B)/deps/%,$(2))))) \
    $(filter $(B)/deps/%,$(2)))

# Flags are part of what an object is made from: a changed Makefile makes all of ours anew, foreign ones too.
$(B)/image/%.o: %.c Makefile | $(NEWLIB_BUILT)
	@mkdir -p $(@D)
	@echo 'CC       $<'
	@$(CC) $(IMAGE_CFLAGS) $(WARNINGS) -MD -MP -c -o $@ $<

$(B)/image/%.o: %.S Makefile | $(NEWLIB_BUILT)
	@mkdir -p $(@D)
	@echo 'AS       $<'
	@$(CC) $(IMAGE_CFLAGS) -MD -MP -c -o $@ $<

$(B)/image/deps/%.o: $(B)/deps/%.c Makefile $(UNPACKED) | $(NEWLIB_BUILT)
	@mkdir -p $(@D)
	@echo 'CC       $<'
	@$(CC) $(IMAGE_CFLAGS) -w -MD -MP -c -o $@ $<

$(B)/host/%.o: %.c Makefile | $(FETCHED)
	@mkdir -p $(@D)
	@echo 'HOSTCC   $<'
	@$(CC) $(HOST_CFLAGS) $(WARNINGS) $(SANITIZE) -MD -MP -c -o $@ $<

# Address sanitizer only: undefined behaviour of foreign code is not ours to stop at.
$(B)/host/deps/%.o: $(B)/deps/%.c Makefile $(UNPACKED)
	@mkdir -p $(@D)
	@echo 'HOSTCC   $<'
	@$(CC) $(HOST_CFLAGS) -w -fsanitize=address -MD -MP -c -o $@ $<

$(B)/fuzz/%.o: %.c Makefile | $(FETCHED)
	@mkdir -p $(@D)
	@echo 'FUZZCC   $<'
	@$(CLANG) $(HOST_CFLAGS) -O2 $(WARNINGS) $(SANITIZE) $(FUZZ_COVERAGE) -MD -MP -c -o $@ $<

# What makes the inputs is not what they are measured by: only the product leads the search. In the driver and in net/
# each check of the sanitizer would be one of the comparisons that are traced, for half of the time and no more edges;
# and what an allocator, a timer list or a sum compares says nothing of frames.
FUZZ_COVERAGE = -fsanitize=fuzzer-no-link
FUZZ_UNTRACED := -fno-sanitize-coverage=trace-cmp
$(B)/fuzz/tests/%.o: FUZZ_COVERAGE =
$(B)/fuzz/drivers/%.o: FUZZ_COVERAGE += $(FUZZ_UNTRACED)
$(B)/fuzz/net/%.o: FUZZ_COVERAGE += $(FUZZ_UNTRACED)
$(patsubst %,$(B)/fuzz/deps/lwip/src/core/%.o,mem memp pbuf timeouts inet_chksum): FUZZ_COVERAGE += $(FUZZ_UNTRACED)

$(B)/fuzz/deps/%.o: $(B)/deps/%.c Makefile $(UNPACKED)
	@mkdir -p $(@D)
	@$(CLANG) $(HOST_CFLAGS) -O2 -w -fsanitize=address $(FUZZ_COVERAGE) -MD -MP -c -o $@ $<

# ---------------------------------------------------------------- the image

IMAGE_OBJECTS := $(call objects,image,$(BOOT_S) $(BOOT_C) $(DRIVERS_C) $(NET_C) $(APPS_C) $(FOREIGN_C))
IMAGE_LINK := $(CC) -m64 -static -no-pie -nostdlib -T linker.ld -Wl,--gc-sections -Wl,--build-id=none \
    -Wl,-z,noexecstack -Wl,-z,max-page-size=4096 -Wl,--no-warn-rwx-segments
IMAGE_LIBS := -L$(NEWLIB)/lib -Wl,--start-group -lc -lm -lgcc -Wl,--end-group

# Linked twice: the panic's symbol table is made of the first link and sits where it moves nothing in the second.
$(B)/image/unnamed.elf: $(IMAGE_OBJECTS) linker.ld $(SOURCES_LIST)
	@echo '.section .symbols, "a"; .balign 8; .globl symbols_table, symbols_count, symbols_names' >$(@D)/no_symbols.S
	@echo 'symbols_table: .quad 0; symbols_count: .long 0; symbols_names: .byte 0' >>$(@D)/no_symbols.S
	@$(CC) -c -o $(@D)/no_symbols.o $(@D)/no_symbols.S
	@$(IMAGE_LINK) -o $@ $(IMAGE_OBJECTS) $(@D)/no_symbols.o $(IMAGE_LIBS)

$(B)/image/symbols.S: $(B)/image/unnamed.elf
	@nm -n $< | awk '$$2 ~ /^[tTwW]$$/ { print substr($$1, 9), $$3 }' | awk ' \
	    BEGIN { print ".section .symbols, \"a\"\n.balign 8\n.globl symbols_table, symbols_count, symbols_names\nsymbols_table:" } \
	    { print ".long 0x" $$1 ", " at + 0; names = names ".asciz \"" $$2 "\"\n"; at += length($$2) + 1 } \
	    END { print "symbols_count: .long " NR "\nsymbols_names:\n" names }' >$@

$(IMAGE_ELF): $(B)/image/symbols.S $(IMAGE_OBJECTS)
	@echo 'LINK     $@'
	@$(CC) -c -o $(B)/image/symbols.o $<
	@$(IMAGE_LINK) -o $@ $(IMAGE_OBJECTS) $(B)/image/symbols.o $(IMAGE_LIBS)
	@test "$$(nm -n $@ | grep -i ' [tw] ')" = "$$(nm -n $(B)/image/unnamed.elf | grep -i ' [tw] ')" || \
	    { echo 'the symbol table moved the code that it describes' >&2; rm -f $@; exit 1; }

# ---------------------------------------------------------------- EFI loader and disk image

# Position independent, as firmware loads it anywhere; two-byte wide strings and the firmware's calling convention.
EFI_CFLAGS := $(C_STANDARD) -O2 -g -fpic -fshort-wchar -mno-red-zone -ffreestanding -fno-stack-protector \
    -fcf-protection=none -fno-strict-aliasing -DGNU_EFI_USE_MS_ABI -isystem /usr/include/efi \
    -isystem /usr/include/efi/x86_64 -iquote .
EFI_C := boot/efi_main.c boot/memmap.c boot/cmdline.c
EFI_OBJECTS := $(patsubst %.c,$(B)/efi/%.o,$(EFI_C)) $(B)/efi/boot/efi_blob.o

image: $(IMAGE_EFI) $(IMAGE_DISK)

$(B)/efi/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo 'EFICC    $<'
	@$(CC) $(EFI_CFLAGS) $(WARNINGS) -MD -MP -c -o $@ $<

$(B)/efi/boot/efi_blob.o: boot/efi_blob.S $(IMAGE_ELF)
	@mkdir -p $(@D)
	@objcopy --strip-all $(IMAGE_ELF) $(B)/efi/image.elf
	@$(CC) -DIMAGE='"$(B)/efi/image.elf"' -c -o $@ $<

$(IMAGE_EFI): $(EFI_OBJECTS)
	@echo 'LINK     $@'
	@ld -nostdlib -znocombreloc -znoexecstack --no-warn-rwx-segments -shared -Bsymbolic -T /usr/lib/elf_x86_64_efi.lds \
	    -o $(B)/efi/loader.so /usr/lib/crt0-efi-x86_64.o $(EFI_OBJECTS) -L/usr/lib -lgnuefi -lefi
	@! nm -u $(B)/efi/loader.so | grep . || { echo 'the EFI loader has undefined symbols' >&2; exit 1; }
	@objcopy -j .text -j .sdata -j .data -j .rodata -j .dynamic -j .dynsym -j .rel -j .rela -j '.rel.*' -j '.rela.*' \
	    -j .reloc --target efi-app-x86_64 --subsystem=10 $(B)/efi/loader.so $@

$(IMAGE_DISK): $(IMAGE_EFI) host/mkimage
	@echo 'IMAGE    $@'
	@host/mkimage $(IMAGE_EFI) $@

# Or the compiler finds that these functions copy and makes them call themselves; or takes vector registers after all.
$(B)/image/boot/libc_copy.o: IMAGE_CFLAGS += -fno-tree-loop-distribute-patterns -fno-tree-vectorize

# ---------------------------------------------------------------- host libraries and unit tests

$(B)/%.a: $(SOURCES_LIST)
	@mkdir -p $(@D)
	@rm -f $@
	@ar rcsD $@ $(filter %.o,$^)

define library_rules
$(B)/$(1)/libboot.a: $(call objects,$(1),$(BOOT_PURE_C))
$(B)/$(1)/libdrivers.a: $(call objects,$(1),$(DRIVERS_C))
$(B)/$(1)/libdevice.a: $(call objects,$(1),$(DEVICE_C))
$(B)/$(1)/libnet.a: $(call objects,$(1),$(NET_C) $(LWIP_C))
$(B)/$(1)/libapps.a: $(call objects,$(1),$(filter-out apps/main.c,$(APPS_C)) $(CJSON_C))
endef
$(eval $(call library_rules,host))
$(eval $(call library_rules,fuzz))

UNIT_TESTS := $(patsubst tests/unit/%.c,$(B)/host/unit/%,$(UNIT_C))
FUZZERS := $(patsubst tests/fuzz/%.c,$(B)/fuzz/bin/%,$(FUZZ_C))

$(B)/host/unit/%: $(B)/host/tests/unit/%.o $(HOST_LIBS)
	@mkdir -p $(@D)
	@echo 'LINK     $@'
	@$(CC) $(SANITIZE) -o $@ $< -Wl,--start-group $(HOST_LIBS) -Wl,--end-group -lcmocka -lm

# Two real threads, optimised and without sanitizers, whose checks take longer than a store stays in its buffer.
THREADS_C := tests/unit/test_field_threads.c $(DRIVERS_C) $(addprefix tests/device/,bell.c rig.c model_device.c seams.c)
$(B)/plain/%.o: %.c Makefile | $(FETCHED)
	@mkdir -p $(@D)
	@echo 'HOSTCC   $<'
	@$(CC) $(HOST_CFLAGS) -O2 $(WARNINGS) -MD -MP -c -o $@ $<

$(B)/host/unit/test_field_threads: $(call objects,plain,$(THREADS_C)) $(SOURCES_LIST)
	@mkdir -p $(@D)
	@echo 'LINK     $@'
	@$(CC) -o $@ $(filter %.o,$^) -lcmocka

# Benchmarks that run the driver's objects in process (host/sluice reproduce stopwake).
$(B)/host/bench/%: $(B)/host/tests/bench/%.o $(addprefix $(B)/host/,libdevice.a libdrivers.a libboot.a)
	@mkdir -p $(@D)
	@echo 'LINK     $@'
	@$(CC) $(SANITIZE) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group

$(B)/fuzz/bin/%: $(B)/fuzz/tests/fuzz/%.o $(subst /host/,/fuzz/,$(HOST_LIBS))
	@mkdir -p $(@D)
	@echo 'LINK     $@'
	@$(CLANG) $(SANITIZE) -fsanitize=fuzzer -o $@ $< \
	    -Wl,--start-group $(subst /host/,/fuzz/,$(HOST_LIBS)) -Wl,--end-group -lm

.SECONDARY:

# The applications as a Linux program on Linux sockets.
HOST_APPS := $(B)/host/sluice-apps
$(HOST_APPS): $(call objects,host,$(wildcard tests/host_sock/*.c) $(APPS_C) drivers/ring_trace.c $(CJSON_C)) $(SOURCES_LIST)
	@echo 'LINK     $@'
	@$(CC) $(SANITIZE) -o $@ $(filter %.o,$^) -lm

# Programs that measurements are set against: plain, optimised Linux programs.
# Those named *_model.c run the driver's objects in process.
MODEL_BENCH_C := $(wildcard tests/bench/*_model.c)
BENCHES := $(patsubst tests/bench/%.c,$(B)/bench/%,$(filter-out $(MODEL_BENCH_C),$(wildcard tests/bench/*.c))) \
    $(MODEL_BENCH_C:tests/bench/%.c=$(B)/host/bench/%) $(B)/bench/empty_pvh.elf
$(B)/bench/%: tests/bench/%.c Makefile
	@mkdir -p $(@D)
	@echo 'HOSTCC   $<'
	@$(CC) $(C_STANDARD) -O2 -g -D_GNU_SOURCE $(WARNINGS) -o $@ $< -lm

# The floor under the guest's boot time: below the guest's own link address, where QEMU takes any ELF with a PVH note.
EMPTY_PVH_ADDR := 0x100000
$(B)/bench/empty_pvh.elf: tests/bench/empty_pvh.S Makefile
	@mkdir -p $(@D)
	@echo 'LINK     $@'
	@$(CC) -nostdlib -static -no-pie -Wl,-Ttext=$(EMPTY_PVH_ADDR) -Wl,--build-id=none -o $@ $<

# The strict device as a vhost-user backend: a plain Linux program, without the driver and its seams.
STRICT_BACKEND := $(B)/strict-backend
STRICT_BACKEND_C := $(wildcard tests/vhost-user/*.c) \
    $(filter-out %_host.c %_watch.c %_frames.c,$(wildcard tests/device/strict_*.c))
$(STRICT_BACKEND): $(STRICT_BACKEND_C) $(wildcard tests/vhost-user/*.h tests/device/strict_*.h) \
    tests/device/strict_clauses.def Makefile
	@echo 'HOSTCC   $@'
	@$(CC) $(C_STANDARD) -O2 -g -D_GNU_SOURCE -iquote . $(WARNINGS) -o $@ $(STRICT_BACKEND_C)

# The driver on the strict device for long: optimised, without sanitizers.
STRICT_LONG := $(B)/strict-long
STRICT_LONG_C := $(wildcard tests/long/*.c) $(DRIVERS_C) $(wildcard tests/device/strict_*.c) tests/device/seams.c
$(STRICT_LONG): $(STRICT_LONG_C) $(wildcard tests/device/*.h drivers/*.h boot/*.h) tests/device/strict_clauses.def Makefile
	@echo 'HOSTCC   $@'
	@$(CC) $(C_STANDARD) -O3 -flto=auto -g -DSLUICE_MODEL -D_GNU_SOURCE -iquote . $(WARNINGS) -o $@ $(STRICT_LONG_C)

# 10^9 descriptors, 10^6 stop/wake cycles, and as many frames with 1 in 1000 interrupts and kicks lost.
long: $(STRICT_LONG)
	@$<

# ---------------------------------------------------------------- checks

unit: $(UNIT_TESTS)
	@$(PYTHON) tests/run_checks.py unit

system: all $(HOST_APPS) $(BENCHES) $(STRICT_BACKEND) $(B)/host/unit/test_trace_replay
	@$(PYTHON) tests/run_checks.py system

lint: | $(NEWLIB_BUILT)
	@$(PYTHON) tests/run_checks.py lint

# What needs no building goes first, so that a slip shows before the long part.
check: all $(UNIT_TESTS) $(FUZZERS) $(HOST_APPS) $(BENCHES) $(STRICT_BACKEND)
	@$(PYTHON) tests/run_checks.py lint unit fuzz-short system

check-long: all $(UNIT_TESTS) $(FUZZERS) $(HOST_APPS) $(BENCHES) $(STRICT_BACKEND)
	@$(PYTHON) tests/run_checks.py lint unit system system-long model mutants interleavings long fuzz

run: $(IMAGE_ELF)
	@host/sluice demo

# The long ones are programs of their own; each ends with code 0 when all is well.
model:
	@$(if $(wildcard tests/model/run),tests/model/run,echo 'skip: tests/model/run is missing')

mutants: $(UNIT_TESTS)
	@$(if $(wildcard tests/mutants/run),tests/mutants/run,echo 'skip: tests/mutants/run is missing')

fuzz: $(FUZZERS)
	@tests/fuzz/run long --seconds $(FUZZ_SECONDS)

# The kept corpus and a few thousand changes of it.
fuzz-short: $(FUZZERS)
	@tests/fuzz/run short

# Executions a second of the ring targets.
fuzz-speed: $(FUZZERS)
	@tests/fuzz/run speed

# More preemptions, and more rounds of two threads, than the same programs have in `make unit`.
interleavings: $(B)/host/unit/test_interleave $(B)/host/unit/test_field_threads
	@INTERLEAVE_LONG=1 $<
	@FIELD_RING_ROUNDS=1000000 $(B)/host/unit/test_field_threads

# ---------------------------------------------------------------- lint, one target a step

OUR_C := $(BOOT_C) $(DRIVERS_C) $(NET_C) $(APPS_C)
OUR_TEST_C := $(DEVICE_C) $(UNIT_C) $(FUZZ_C) $(wildcard tests/host_sock/*.c tests/bench/*.c tests/vhost-user/*.c tests/long/*.c)
OUR_H := $(wildcard boot/*.h drivers/*.h net/*.h net/arch/*.h apps/*.h tests/*/*.h)
# Shell scripts by their first line, as they carry no suffix.
SCRIPTS = $(shell grep -l -E -e '^\#!/(usr/)?bin/(env )?(ba)?sh' -r host tests .ci)

.PHONY: lint-clang lint-format lint-tidy lint-cppcheck lint-shell lint-layers lint-size lint-foreign lint-clauses \
    lint-mutants lint-field-cases

# The second compiler, with the same warnings, on exactly what is compiled otherwise.
CLANG_IMAGE_CFLAGS = $(subst -isystem $(shell $(CC) -print-file-name=include),-isystem $(shell $(CLANG) -print-resource-dir)/include,$(IMAGE_CFLAGS))
lint-clang: | $(NEWLIB_BUILT)
	@$(CLANG) -fsyntax-only $(CLANG_IMAGE_CFLAGS) $(WARNINGS) $(OUR_C)
	@$(CLANG) -fsyntax-only $(EFI_CFLAGS) $(WARNINGS) boot/efi_main.c
	@$(CLANG) -fsyntax-only $(HOST_CFLAGS) $(WARNINGS) $(DRIVERS_C) $(NET_C) $(APPS_C) $(OUR_TEST_C)

lint-format:
	@clang-format --dry-run -Werror $(OUR_C) boot/efi_main.c $(OUR_H) $(OUR_TEST_C)

# Checks and exceptions are in .clang-tidy. Asserts branch so often that the analyzer spends its whole allowance on each
# test: with a seventh of it there are the same findings in a quarter of the time.
TIDY_TEST_CFLAGS = $(HOST_CFLAGS) -Xclang -analyzer-config -Xclang max-nodes=30000
tidy = printf '%s\n' $(1) | xargs -P 2 -n 1 sh -c \
    'out=$$(clang-tidy --quiet "$$1" -- $(2) 2>&1) || { echo "$$out"; exit 1; }' clang-tidy || failed=1
lint-tidy: | $(NEWLIB_BUILT)
	@command -v clang-tidy >/dev/null || { echo 'skip: clang-tidy is not installed'; exit 0; }; failed=0; \
	$(call tidy,$(OUR_C),$(CLANG_IMAGE_CFLAGS)); $(call tidy,boot/efi_main.c,$(EFI_CFLAGS)); \
	$(call tidy,$(OUR_TEST_C),$(TIDY_TEST_CFLAGS)); exit $$failed

# One configuration, the image's; it does not know _Noreturn. The self-test's writes are wrong on purpose.
lint-cppcheck:
	@cppcheck -q --error-exitcode=1 --inline-suppr --std=c11 --enable=warning,portability,performance \
	    --suppress=missingInclude --suppress=toomanyconfigs --suppress=selfAssignment:apps/selftest.c \
	    -D__x86_64__ -USLUICE_MODEL '-D_Noreturn=__attribute__((noreturn))' -I. $(OUR_C)

lint-shell:
	@shellcheck $(SCRIPTS)

lint-layers:
	@$(PYTHON) tests/layers.py

lint-size:
	@$(PYTHON) tests/sizes.py

lint-foreign:
	@$(PYTHON) tests/foreign.py

# Prints "N clauses covered of M that apply".
lint-clauses:
	@$(PYTHON) tests/clauses.py

lint-mutants:
	@$(PYTHON) tests/mutants/run --check

# Prints "N field cases: M are tests, K listed with a reason".
lint-field-cases:
	@$(PYTHON) tests/field_cases.py

clean:
	@rm -rf $(filter-out $(B)/deps $(B)/newlib,$(wildcard $(B)/*)) $(SOURCES_LIST)

-include $(shell find $(B)/image $(B)/efi $(B)/host $(B)/plain $(B)/fuzz -name '*.d' 2>/dev/null)
