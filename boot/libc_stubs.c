/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What newlib expects of the system below it. Three open files that cannot be closed, all of them
 * the console; no other file can be opened, and no other process exists.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>

#include "boot/clock.h"
#include "boot/machine.h"
#include "boot/mem.h"
#include "boot/panic.h"
#include "boot/serial.h"

#define NS_PER_US    1000ull
#define ONLY_PROCESS 1

/* newlib calls these by name, and those of the headers above; no header of ours is needed. */
_Noreturn void _exit(int code);
int close(int fd);
int getpid(void);
int isatty(int fd);
int kill(int pid, int signal);
off_t lseek(int fd, off_t offset, int whence);
int read(int fd, void *buffer, size_t bytes);
void *sbrk(ptrdiff_t bytes);
int write(int fd, const void *buffer, size_t bytes);

int write(int fd, const void *buffer, size_t bytes)
{
    (void)fd;
    console_write(buffer, bytes);
    return (int)bytes;
}

int read(int fd, void *buffer, size_t bytes)
{
    (void)fd;
    (void)buffer;
    (void)bytes;
    return 0;
}

void *sbrk(ptrdiff_t bytes)
{
    void *old = mem_heap_grow(bytes);
    if (old == NULL) {
        errno = ENOMEM;
        return (void *)-1;
    }
    return old;
}

/* A terminal, so that stdio sends every line when it ends. */
int isatty(int fd)
{
    (void)fd;
    return 1;
}

int fstat(int fd, struct stat *sbuf)
{
    (void)fd;
    *sbuf = (struct stat){.st_mode = S_IFCHR};
    return 0;
}

int close(int fd)
{
    (void)fd;
    errno = EBADF;
    return -1;
}

off_t lseek(int fd, off_t offset, int whence)
{
    (void)fd;
    (void)offset;
    (void)whence;
    errno = ESPIPE;
    return -1;
}

/* Since entry: nobody has told the date. */
int gettimeofday(struct timeval *restrict p, void *restrict tz)
{
    (void)tz;
    uint64_t now = clock_now_ns();
    p->tv_sec = (time_t)(now / CLOCK_NS_PER_S);
    p->tv_usec = (suseconds_t)(now % CLOCK_NS_PER_S / NS_PER_US);
    return 0;
}

int getpid(void)
{
    return ONLY_PROCESS;
}

/* abort() raises a signal, and nobody handles any. */
int kill(int pid, int signal)
{
    (void)pid;
    panic("signal %d", signal);
}

void _exit(int code)
{
    machine_exit(code);
}
