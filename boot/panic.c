/* SPDX-License-Identifier: BSD-2-Clause */
#include "boot/panic.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "boot/cpu.h"
#include "boot/entry.h"
#include "boot/machine.h"
#include "boot/serial.h"
#include "boot/symbols.h"
#include "boot/x86.h"

#define BACKTRACE_MAX     32u
#define VECTOR_PAGE_FAULT 14u

#define FAULT_PRESENT 0x1u
#define FAULT_WRITE   0x2u
#define FAULT_FETCH   0x10u

/* In the order in which exception_common (entry_irq.S) leaves them, lowest address first. */
struct exception_frame {
    uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
    uint64_t vector, error;
    uint64_t rip, cs, rflags, rsp, ss;
};

_Noreturn void exception_panic(const struct exception_frame *frame);

/* The generated table; empty in the first link. */
extern const struct symbol symbols_table[];
extern const uint32_t symbols_count;
extern const char symbols_names[];

static const char *const exception_names[IRQ_FIRST_VECTOR] = {
    "divide error",
    "debug",
    "non-maskable interrupt",
    "breakpoint",
    "overflow",
    "bound range exceeded",
    "invalid opcode",
    "no floating point unit",
    "double fault",
    "coprocessor overrun",
    "invalid TSS",
    "segment not present",
    "stack segment fault",
    "general protection fault",
    "page fault",
    "reserved exception",
    "x87 floating point error",
    "alignment check",
    "machine check",
    "SIMD floating point error",
    "virtualization exception",
    "control protection exception",
};

/* Straight to the port: the heap and stdio may be what broke. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    static char line[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (length > 0) {
        console_write(line, strlen(line));
    }
}

/* A panic inside a panic leaves at once, with what is on the console by then. */
static void only_once(void)
{
    static bool entered;
    if (entered) {
        console_write("\npanic in panic\n", 16);
        machine_exit(SLUICE_EXIT_INVARIANT);
    }
    entered = true;
}

static void say_place(unsigned depth, uint64_t address)
{
    const struct symbol_table table = {symbols_table, symbols_count, symbols_names};
    uint64_t offset;
    const char *name = symbols_find(&table, address, &offset);
    bool in_text = address >= (uint64_t)text_start && address < (uint64_t)text_end;
    if (in_text && name != NULL) {
        say("  #%-2u 0x%016llx %s+0x%llx\n", depth, (unsigned long long)address, name,
            (unsigned long long)offset);
    } else {
        say("  #%-2u 0x%016llx (not in the image's code)\n", depth, (unsigned long long)address);
    }
}

static bool is_stack(uint64_t address)
{
    return address >= (uint64_t)stack_guard_end && address + 16 <= (uint64_t)stack_top &&
           address % 8 == 0;
}

/* Follows the frame pointers as long as they rise within the stack, so a broken chain ends it and
 * cannot fault. */
static void say_backtrace(uint64_t rip, uint64_t rbp)
{
    say("backtrace:\n");
    unsigned depth = 0;
    if (rip != 0) {
        say_place(depth++, rip);
    }
    for (; depth < BACKTRACE_MAX && is_stack(rbp); depth++) {
        const uint64_t *saved = (const uint64_t *)rbp;
        if (saved[1] == 0) {
            break;
        }
        /* The call, not what follows it: that may already be another function. */
        say_place(depth, saved[1] - 1);
        if (saved[0] <= rbp) {
            break;
        }
        rbp = saved[0];
    }
}

void panic(const char *format, ...)
{
    cpu_irq_disable();
    only_once();
    static char reason[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    say("\nPANIC: %s\n", reason);
    say_backtrace(0, (uint64_t)__builtin_frame_address(0));
    machine_exit(SLUICE_EXIT_INVARIANT);
}

static const char *address_hint(uint64_t address)
{
    if (address < 4096) {
        return " (null page)";
    }
    if (address >= (uint64_t)stack_guard_start && address < (uint64_t)stack_guard_end) {
        return " (stack overflow: guard page)";
    }
    if (address >= (uint64_t)text_start && address < (uint64_t)text_end) {
        return " (code)";
    }
    if (address >= (uint64_t)rodata_start && address < (uint64_t)rodata_end) {
        return " (constants)";
    }
    return "";
}

static void say_reason(const struct exception_frame *frame)
{
    const char *name = exception_names[frame->vector];
    say("\nPANIC: %s", name != NULL ? name : "reserved exception");
    if (frame->vector == VECTOR_PAGE_FAULT) {
        uint64_t address = x86_read_cr2();
        const char *what = "read of";
        if (frame->error & FAULT_FETCH) {
            what = "execution of";
        } else if (frame->error & FAULT_WRITE) {
            what = "write to";
        }
        say(": %s %s page at 0x%016llx%s\n", what,
            frame->error & FAULT_PRESENT ? "a protected" : "an absent", (unsigned long long)address,
            address_hint(address));
    } else {
        say(", error code 0x%llx\n", (unsigned long long)frame->error);
    }
}

void exception_panic(const struct exception_frame *frame)
{
    only_once();
    say_reason(frame);
    const struct {
        const char *name;
        uint64_t value;
    } registers[] = {
        {"rax", frame->rax},       {"rbx", frame->rbx},     {"rcx", frame->rcx},
        {"rdx", frame->rdx},       {"rsi", frame->rsi},     {"rdi", frame->rdi},
        {"rbp", frame->rbp},       {"rsp", frame->rsp},     {"r8 ", frame->r8},
        {"r9 ", frame->r9},        {"r10", frame->r10},     {"r11", frame->r11},
        {"r12", frame->r12},       {"r13", frame->r13},     {"r14", frame->r14},
        {"r15", frame->r15},       {"rip", frame->rip},     {"cs ", frame->cs},
        {"rflags", frame->rflags}, {"cr2", x86_read_cr2()},
    };
    for (size_t i = 0; i < sizeof(registers) / sizeof(registers[0]); i++) {
        say("%s 0x%016llx%s", registers[i].name, (unsigned long long)registers[i].value,
            i % 4 == 3 ? "\n" : "  ");
    }
    say_backtrace(frame->rip, frame->rbp);
    machine_exit(SLUICE_EXIT_INVARIANT);
}
