/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The end of the road: an invariant of ours is broken, so nothing this program says can be believed
 * any more.
 */
#ifndef SLUICE_BOOT_PANIC_H
#define SLUICE_BOOT_PANIC_H

/* Exit codes of guest and host alike. */
enum sluice_exit {
    SLUICE_EXIT_PASS = 0,
    SLUICE_EXIT_USAGE = 1,
    SLUICE_EXIT_PEER = 2,
    SLUICE_EXIT_THRESHOLD = 3,
    SLUICE_EXIT_INVALID = 4,
    SLUICE_EXIT_INVARIANT = 5,
};

/*
 * Prints the reason, registers and a symbolised backtrace on the console, then leaves with
 * SLUICE_EXIT_INVARIANT. Host builds: defined by tests/device, aborts or jumps back into the test.
 */
_Noreturn void panic(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For what a caller promised and only a bug breaks. The condition has no side effect. */
#define invariant(condition)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            panic("%s:%d: broken invariant: %s", __FILE__, __LINE__, #condition);                  \
        }                                                                                          \
    } while (0)

#endif
