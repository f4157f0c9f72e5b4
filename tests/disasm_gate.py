#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Looks at the machine code: is the full barrier where the protocol needs it, in every inlined copy?

    tests/disasm_gate.py build/sluice.elf       the shipped image
    tests/disasm_gate.py --self-test            copies with one barrier removed, or sti not before hlt, must be refused

Where a side stores what the other looks at and then looks at what the other stores, x86 keeps the order only across
mfence or a locked operation (virtio 2.7.13.4.1, 2.7.14). Three rules, each on every path through every function that
holds a copy of the code, found by the debug information and not by the shape of the instructions:

kick   between the store of the available index and each load of used.flags or avail_event: a full barrier
arm    between the store of used_event or avail.flags and the look at the used index: a full barrier
halt   sti stands directly before hlt, so that no interrupt falls between

A path is bad if it reaches the load with a store, a call or the function's own entry after the last barrier.
"""

import argparse
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SYMBOL = re.compile(r"^([0-9a-f]+) <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.*\S)")
FUNCTION = re.compile(r"^(\w+)\(\):$")
INLINED = re.compile(r"^inlined by .* \((\w+)\)$")
TARGET = re.compile(r"^(?:j\w+|loop\w*)\s+(?:[a-z]+ )*(?:0x)?([0-9a-f]+)\b")

KICK, ARM, HALT = "kick", "arm", "halt"


@dataclasses.dataclass
class Instruction:
    address: int
    text: str
    chain: tuple  # functions it belongs to by the debug information, innermost first

    @property
    def is_barrier(self):
        return self.text.startswith(("mfence", "lock ")) or re.match(r"xchg\w*\s.*\(", self.text) is not None

    @property
    def is_call(self):
        return self.text.startswith("call")

    @property
    def is_publish(self):
        """A store that a barrier has to follow."""
        return self.chain[:2] in (("shared_store16", "vq_publish"), ("shared_store16", "vq_arm_unchecked"))

    @property
    def rule(self):
        """Which rule this load falls under, or None."""
        if self.goes_to("device_wants_kick"):
            return KICK
        if self.chain[0].startswith("shared_load") and "device_wants_kick" in self.chain:
            return KICK
        if "vq_arm" in self.chain and (self.chain[:2] == ("shared_load16", "vq_pending") or
                                       self.goes_to("vq_pending")):
            return ARM
        return None

    def goes_to(self, function):
        """Calls or tail-jumps to it, as a whole or to a part that the compiler split off (.part, .isra)."""
        return re.match(rf"(call|jmp)\b.*<{function}(\.\w+)*>", self.text) is not None


def functions(path):
    """Name and instructions of every function in an object file or image."""
    text = subprocess.run(["objdump", "-d", "-l", "--inlines", "--no-show-raw-insn", "-r", path], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    name, inner, inlined, body = "", "", [], []
    for line in text.splitlines():
        if match := SYMBOL.match(line):
            if body:
                yield name, body
            name, inner, inlined, body = match.group(2), "", [], []
        elif match := FUNCTION.match(line):
            inner, inlined = match.group(1), []
        elif match := INLINED.match(line):
            inlined.append(match.group(1))
        elif re.match(r"^\s+[0-9a-f]+: R_X86_64", line):
            # Object files: what a call goes to stands in the relocation behind it.
            if body:
                target = re.sub(r"[-+]0x[0-9a-f]+$", "", line.split()[-1]).removeprefix(".text.")
                body[-1].text += f" <{target}>"
        elif match := INSTRUCTION.match(line):
            body.append(Instruction(int(match.group(1), 16), match.group(2), (inner or name, *inlined)))
            inlined = []
    if body:
        yield name, body


def successors(body, index, by_address):
    instruction = body[index]
    following = [index + 1] if index + 1 < len(body) else []
    if instruction.text.startswith(("ret", "hlt", "ud2")):
        return []
    if match := TARGET.match(instruction.text):
        target = by_address.get(int(match.group(1), 16))
        jump = [] if target is None else [target]
        return jump if instruction.text.startswith("jmp") else jump + following
    if instruction.text.startswith("jmp"):
        return list(range(len(body)))  # through a table: anywhere
    return following


def dirty_before(name, body):
    """
    For each instruction: can it be reached without a barrier after the last store, call or entry? What the compiler
    made of device_wants_kick as a function of its own is judged at the calls of it.
    """
    by_address = {instruction.address: index for index, instruction in enumerate(body)}
    dirty = [False] * len(body)
    reached = [False] * len(body)
    work = [(0, not name.startswith("device_wants_kick"))]
    while work:
        index, state = work.pop()
        if reached[index] and (dirty[index] or not state):
            continue
        reached[index] = True
        dirty[index] = dirty[index] or state
        instruction = body[index]
        after = dirty[index]
        if instruction.is_barrier:
            after = False
        elif instruction.is_publish or instruction.is_call:
            after = True
        work += [(successor, after) for successor in successors(body, index, by_address)]
    return dirty


def examine(path):
    """Complaints, and how many places fell under each rule."""
    complaints, places = [], {KICK: 0, ARM: 0, HALT: 0}
    for name, body in functions(path):
        dirty = None
        for index, instruction in enumerate(body):
            if instruction.text.startswith("hlt") and "cpu_idle" in instruction.chain:
                places[HALT] += 1
                if index == 0 or not body[index - 1].text.startswith("sti"):
                    complaints.append(f"{name}+{instruction.address - body[0].address:#x}: hlt without sti before it")
            if instruction.rule is None:
                continue
            dirty = dirty_before(name, body) if dirty is None else dirty
            places[instruction.rule] += 1
            if dirty[index]:
                complaints.append(f"{name}+{instruction.address - body[0].address:#x}: {instruction.rule}: "
                                  f"{instruction.text.split('#')[0].strip()} without a full barrier before it")
    return complaints, places


def gate(paths, wanted):
    ok = True
    for path in paths:
        complaints, places = examine(path)
        missing = [rule for rule in wanted if not places[rule]]
        for complaint in complaints + [f"nothing found for the rule '{rule}'" for rule in missing]:
            print(f"{path}: {complaint}")
        print(f"{path}: " + ", ".join(f"{rule} {count}" for rule, count in places.items()) +
              (": refused" if complaints or missing else ": a barrier in each"))
        ok = ok and not complaints and not missing
    return ok


# ---- the gate itself is tested: it must refuse what it is there to refuse

CFLAGS = "-std=gnu17 -g -m64 -mno-red-zone -fno-pic -mcmodel=small -ffunction-sections -fno-omit-frame-pointer"
# What is taken out, where, how often it stands there, and which rule must notice.
REMOVALS = (
    ("the barrier's instruction", "boot/cpu.h", '"mfence"', '""', (KICK, ARM)),
    ("vq_kick's barrier", "drivers/virtqueue_split.c", r"(bool vq_kick\(.*?)cpu_mb\(\);", r"\1", (KICK,)),
    ("vq_arm's barrier", "drivers/virtqueue_split.c", r"(bool vq_arm\(.*?)cpu_mb\(\);", r"\1", (ARM,)),
    ("vq_kick_again's barrier", "drivers/virtqueue_split.c", r"(bool vq_kick_again\(.*?)cpu_mb\(\);", r"\1", (KICK,)),
    ("the order in vq_kick", "drivers/virtqueue_split.c",
     r"(bool vq_kick\(.*?)cpu_mb\(\);(.*?device_wants_kick\([^;]*;)", r"\1\2cpu_mb();", (KICK,)),
)


def compile_copy(folder, compiler, level):
    objects = os.path.join(folder, "virtqueue_split.o")
    command = [*shlex.split(compiler), *shlex.split(CFLAGS), level, "-iquote", folder, "-c", "-o", objects,
               os.path.join(folder, "drivers/virtqueue_split.c")]
    subprocess.run(command, check=True)
    return objects


def self_test_one(compiler, level, folder):
    """The unchanged driver passes, each removal is refused under its rule."""
    good = True
    for what, file, pattern, replacement, rules in (("nothing", "boot/cpu.h", "^", "", ()), *REMOVALS):
        for part in ("boot", "drivers"):
            shutil.copytree(os.path.join(ROOT, part), os.path.join(folder, part), dirs_exist_ok=True)
        path = os.path.join(folder, file)
        with open(path, encoding="utf-8") as source:
            text, count = re.subn(pattern, replacement, source.read(), count=1, flags=re.S)
        with open(path, "w", encoding="utf-8") as source:
            source.write(text)
        complaints, places = examine(compile_copy(folder, compiler, level))
        found = {rule for rule in (KICK, ARM) if any(f": {rule}: " in complaint for complaint in complaints)}
        ok = count == 1 and found == set(rules) and places[KICK] > 0 and places[ARM] > 0
        print(f"{'ok' if ok else 'FAIL':4} {compiler} {level}: without {what}: "
              f"{'refused: ' + ', '.join(sorted(found)) if found else 'passes'}")
        good = good and ok
    return good


def self_test_halt(compiler, level, folder):
    """sti and hlt as boot/cpu.h has them pass; with an instruction between them an interrupt could fall there."""
    good = True
    for what, between in (("nothing", ""), ("sti directly before hlt", "nop\\n\\t")):
        shutil.copytree(os.path.join(ROOT, "boot"), os.path.join(folder, "boot"), dirs_exist_ok=True)
        path = os.path.join(folder, "boot/cpu.h")
        with open(path, encoding="utf-8") as source:
            text, count = re.subn(r"sti\\n\\thlt", lambda _: f"sti\\n\\t{between}hlt", source.read())
        with open(path, "w", encoding="utf-8") as source:
            source.write(text)
        halt = os.path.join(folder, "halt.c")
        with open(halt, "w", encoding="utf-8") as source:
            source.write('#include "boot/cpu.h"\nvoid halt(void);\nvoid halt(void)\n{\n    cpu_idle();\n}\n')
        command = [*shlex.split(compiler), *shlex.split(CFLAGS), level, "-iquote", folder, "-c", "-o", halt + ".o", halt]
        subprocess.run(command, check=True)
        complaints, _ = examine(halt + ".o")
        refused = any("hlt without sti before it" in complaint for complaint in complaints)
        ok = count == 1 and refused == bool(between)
        print(f"{'ok' if ok else 'FAIL':4} {compiler} {level}: without {what}: {'refused: halt' if refused else 'passes'}")
        good = good and ok
    return good


def self_test():
    good = True
    compilers = [compiler for compiler in ("gcc", "clang") if shutil.which(compiler)]
    for compiler in compilers:
        for level in ("-O1", "-O2"):
            with tempfile.TemporaryDirectory() as folder:
                good = self_test_one(compiler, level, folder) and good
            with tempfile.TemporaryDirectory() as folder:
                good = self_test_halt(compiler, level, folder) and good
    return good and bool(compilers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="images or object files with debug information")
    parser.add_argument("--self-test", action="store_true", help="show that the gate refuses what it should")
    options = parser.parse_args()
    if not options.files and not options.self_test:
        parser.error("name a file, or --self-test")
    ok = gate(options.files, (KICK, ARM, HALT))
    if options.self_test:
        ok = self_test() and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
