/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared memory as x86 gives it to two processors: total store order.
 *
 *    driver --store--> sb_drv --drain--> mem <--drain-- sb_dev <--store-- device
 *       ^------------- load -------------'  '------------- load -----------^
 *
 * A store enters the store buffer of its own side and reaches memory later, in order, when the drain
 * process takes it; a load reads memory at once. So a load may overtake an older store of the same side,
 * and nothing else is reordered: exactly the freedom that mfence takes away (StoreLoad). Neither side
 * ever loads a word that it stores itself (the driver and the device keep private shadows), so loads
 * need not look into the own buffer.
 *
 * The kick (a posted write to the notify register) and the interrupt (a posted MSI write) are words of
 * memory too and travel through the same buffers: they cannot overtake the index store before them, and
 * they may be late.
 *
 * A fence waits until the own buffer is empty. A fence followed by a load is one step here: between the
 * two the side does nothing, its buffer stays empty, so the load alone decides.
 *
 * The drain processes are what weak fairness needs: a store is visible at some time, no one says when.
 */
#ifndef SB_DEPTH
#define SB_DEPTH 2
#endif

byte mem[MEM_WORDS];
chan sb_drv = [SB_DEPTH] of { byte, byte };
chan sb_dev = [SB_DEPTH] of { byte, byte };

active proctype drain_drv()
{
    byte a, v;
end:
    do
    :: atomic { sb_drv?a, v -> mem[a] = v; a = 0; v = 0 }
    od
}

active proctype drain_dev()
{
    byte a, v;
end:
    do
    :: atomic { sb_dev?a, v -> mem[a] = v; a = 0; v = 0 }
    od
}
