# SPDX-License-Identifier: Apache-2.0
"""What ptxas made of the instructions that it must not reorder: five rules over SASS, as
`cuobjdump -sass` prints it. All but "loads" follow every path through a kernel.

  wgmma       From a wgmma until the wait for its group, no instruction touches its accumulators,
              and none writes its A. Those registers belong to the tensor core (ptxas before 13.3
              may reuse A too early).
  setmaxnreg  Code after it uses only registers that the warp then has.
  bulk copy   None lies in a loop over a warp's lanes, which ptxas makes where it cannot see that
              one lane copies (ElectedLane in ptx.cuh shows it).
  wait        A kernel that may start before the one before it ends waits for it (ACQBULK) on every
              path. Up to there it launches no dependents (PREEXIT), and touches global memory only
              by what EARLY says for it and by cp.async (LDGSTS), which fetches weights.
  loads       In decode attention, a loop asks for all that it loads from global memory before it
              waits for any of it. With too few registers ptxas waits between.
"""

import collections
import dataclasses
import re

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?(\S+?)(?:\s+([^;]*?))?\s*;")
REGISTER = re.compile(r"(?<![\w.])[-|~!]*R(\d+)\b(\.64)?")
ADDRESS = re.compile(r"(?<!\w)0x([0-9a-f]+)\s*$")
WGMMA_SHAPE = re.compile(r"HGMMA\.64x(\d+)x16\.F32")

# Opcodes whose first register is a source. Others write it, after their predicates.
WITHOUT_RESULT = {
    "BAR", "BRA", "BSSY", "BSYNC", "CALL", "CCTL", "DSETP", "FSETP", "HSETP2", "ISETP", "R2P",
    "R2UR", "RED", "REDG", "RET", "ST", "STG", "STL", "STS", "STSM", "SYNCS", "UBLKCP", "WARPSYNC"
}
INDIRECT = {"BRX", "BRXU", "JMP", "JMX"}
GROUPS_MAX = 8  # in flight; more: a wait is missing

ONE_ROUND = "DiffDecode"  # in the names of the kernels under the rule "loads"

# Parts of the names of the kernels that must wait, and how they may access global memory before.
EARLY = {
    "FewRowsKernel": set(),
    "DiffDecodePagesKernel": {"LDG", "UBLKCP"},  # the plan, and pages of earlier steps
}
# Opcodes that access global memory, or any (LD, ST, ATOM), beside those of the wait.
ACCESSES = {
    "ATOM", "ATOMG", "LD", "LDG", "RED", "REDG", "ST", "STG", "UBLKCP", "UBLKRED", "UTMALDG",
    "UTMASTG"
}

RULES = ("wgmma", "setmaxnreg", "bulk copy", "wait", "loads")


@dataclasses.dataclass
class Instruction:
    address: int
    predicate: str  # "@!P0", or ""
    opcode: str  # "LDG.E.128"
    operands: list

    @property
    def base(self):
        return self.opcode.split(".")[0]

    def __str__(self):
        text = f"{self.predicate} {self.opcode} {', '.join(self.operands)}".strip()
        return f"{self.address:#x} {text}"


def functions(lines):
    """(name, instructions) of each function."""
    name, code = None, []
    for line in lines:
        if match := FUNCTION.match(line):
            if name is not None:
                yield name, code
            name, code = match[1], []
        elif match := INSTRUCTION.match(line):
            operands = [part.strip() for part in (match[4] or "").split(",")]
            code.append(Instruction(int(match[1], 16), match[2] or "", match[3], operands))
    if name is not None:
        yield name, code


def registers_of(operand, width):
    """The numbers of the registers in one operand, whose value has `width` registers. An address
    has two with `.64`."""
    found = set()
    for number, wide in REGISTER.findall(operand):
        count = 2 if wide else 1 if "[" in operand else width
        found |= set(range(int(number), int(number) + count))
    return found


def width_of(opcode):
    """Registers of a result, or of what a store writes."""
    if ".128" in opcode:
        return 4
    if ".64" in opcode or ".WIDE" in opcode or opcode in ("CS2R", "F2I.U64.TRUNC"):
        return 2
    if opcode.startswith("LDSM"):
        return 4 if opcode.endswith(".4") else 2 if opcode.endswith(".2") else 1
    if opcode.startswith(("HMMA", "IMMA")):
        return 4
    return 1


def written(instruction):
    if instruction.base in WITHOUT_RESULT:
        return set()
    if instruction.base == "HGMMA":
        return wgmma_registers(instruction)[0]
    for operand in instruction.operands:
        if re.fullmatch(r"U?PT?\d*", operand):
            continue
        return registers_of(operand, width_of(instruction.opcode)) if operand[:1] == "R" else set()
    return set()


def touched(instruction):
    """Registers read or written. A multiplication into a pair reads one as its last operand."""
    if instruction.base == "HGMMA":
        accumulators, a = wgmma_registers(instruction)
        return accumulators | a
    found = written(instruction)
    is_store = instruction.base.startswith("ST")
    has_pair = ".WIDE" in instruction.opcode or instruction.opcode.startswith("I2F.U64")
    for operand in instruction.operands:
        is_pair = has_pair and operand is instruction.operands[-1]
        found |= registers_of(operand, width_of(instruction.opcode) if is_store else 1 + is_pair)
    return found


def wgmma_registers(instruction):
    """(accumulators, A in registers) of an HGMMA."""
    count = int(WGMMA_SHAPE.match(instruction.opcode)[1]) // 2
    accumulators = registers_of(instruction.operands[0], count)
    second = instruction.operands[1]
    return accumulators, registers_of(second, 4) if second.startswith("R") else set()


class Code:
    """A function's instructions and where each leads."""

    def __init__(self, instructions):
        self.instructions = instructions
        self.index = {each.address: i for i, each in enumerate(instructions)}
        self.next = [self._after(i) for i in range(len(instructions))]

    def _after(self, i):
        each = self.instructions[i]
        if each.base in INDIRECT:
            raise ValueError(f"{each} cannot be followed")
        after = []
        if each.base in ("BRA", "CALL", "WARPSYNC"):
            target = ADDRESS.search(each.operands[-1])
            if target and int(target[1], 16) in self.index:
                after.append(self.index[int(target[1], 16)])
            elif each.base != "WARPSYNC":
                raise ValueError(f"{each} cannot be followed")
        # A call comes back to the next instruction. BSYNC and a collective go on with it.
        is_jump = each.base == "BRA" and len(each.operands) == 1 and ".U" not in each.opcode
        ends = is_jump or each.base in ("EXIT", "RET", "KILL")
        if (not ends or each.predicate) and i + 1 < len(self.instructions):
            after.append(i + 1)
        return after

    def reachable(self, begin, stops):
        """Indices of the instructions that may follow `begin` (None: the beginning), up to those
        that `stops` accepts."""
        seen, pending = set(), [0] if begin is None else list(self.next[begin])
        while pending:
            i = pending.pop()
            if i in seen or stops(self.instructions[i]):
                continue
            seen.add(i)
            pending += self.next[i]
        return seen


def in_flight(instruction, state):
    """The state after an instruction: groups of wgmma that are not waited for, the last one open.
    A group is a tuple of (accumulators, A)."""
    *closed, last = state
    if instruction.base == "HGMMA":
        last += (tuple(map(frozenset, wgmma_registers(instruction))),)
        if "gsb0" in instruction.operands:
            return (*closed, last, ())
    elif instruction.opcode.startswith("WARPGROUP.DEPBAR"):
        kept = int(instruction.operands[-1], 16)
        return (*(closed[-kept:] if kept else ()), last)
    return (*closed, last)


def wgmma_fault(instruction, state):
    """What an instruction does to the registers of unfinished wgmma, or "". wgmma with the same
    accumulators follow each other in order."""
    uses, writes = touched(instruction), written(instruction)
    own = writes if instruction.base == "HGMMA" else None
    for accumulators, a in (each for group in state for each in group):
        if own != accumulators and accumulators & uses:
            return f"touches accumulators R{min(accumulators)}.. of an unfinished wgmma"
        if a & writes:
            return f"writes A R{min(a)}.. of an unfinished wgmma"
    return ""


def judge_wgmma(code):
    """(number of wgmma, findings)"""
    count = sum(each.base == "HGMMA" for each in code.instructions)
    if count == 0:
        return 0, []
    findings = {}
    seen, pending = set(), [(0, ((),))]
    while pending:
        at, state = pending.pop()
        if (at, state) in seen:
            continue
        seen.add((at, state))
        each = code.instructions[at]
        if fault := wgmma_fault(each, state):
            findings[at] = f"{each} {fault}"
            continue
        state = in_flight(each, state)
        if len(state) > GROUPS_MAX:
            findings[at] = f"{each} follows {GROUPS_MAX} groups of wgmma without a wait"
            continue
        pending += [(i, state) for i in code.next[at]]
    return count, [findings[at] for at in sorted(findings)]


def judge_registers(code):
    """(number of setmaxnreg, findings)"""
    count, findings = 0, []
    for at, each in enumerate(code.instructions):
        if each.base != "USETMAXREG":
            continue
        count += 1
        limit = int(each.operands[-1], 16)
        reach = code.reachable(at, lambda other: other.base == "USETMAXREG")
        if not reach:
            findings.append(f"nothing follows {each}")
        used = [code.instructions[i] for i in sorted(reach)]
        beyond = [other for other in used if max(touched(other), default=0) >= limit]
        findings += [
            f"{other} reaches beyond the {limit} registers of {each}" for other in beyond[:3]
        ]
    return count, findings


def judge_bulk_copies(code):
    """(number of bulk copies, findings)"""
    loops = []
    for each in code.instructions:
        if each.base == "BRA" and ".U.ANY" in each.opcode:
            loops.append((int(ADDRESS.search(each.operands[-1])[1], 16), each.address))
    copies = [each for each in code.instructions if each.base == "UBLKCP"]
    return len(copies), [
        f"{each} lies in a loop over the warp's lanes" for each in copies
        if any(begin <= each.address <= end for begin, end in loops)
    ]


def innermost_loops(instructions):
    """The instructions of each loop that holds no other, in the order of their addresses."""
    loops = []
    for each in instructions:
        target = each.base == "BRA" and ADDRESS.search(each.operands[-1])
        if target and int(target[1], 16) < each.address:
            loops.append((int(target[1], 16), each.address))
    for begin, end in loops:
        if any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops):
            continue
        yield [each for each in instructions if begin <= each.address <= end]


def judge_loads(instructions):
    """(number of loops that load, findings)"""
    count, findings = 0, []
    for loop in innermost_loops(instructions):
        in_flight_to, waits = set(), []
        for each in loop:
            if in_flight_to & touched(each):
                in_flight_to = set()
                waits.append(each)
            if each.base == "LDG":
                in_flight_to |= written(each)
        count += any(each.base == "LDG" for each in loop)
        rounds = len(waits) + bool(in_flight_to)
        if rounds > 1:
            findings.append(f"{loop[0]} begins a loop with {rounds} rounds of loads; the first "
                            f"waits at {waits[0]}")
    return count, findings


def judge_wait(code, allowed):
    """(number of waits, findings). allowed: opcodes that access global memory before."""

    def is_wait(each):
        return each.base == "ACQBULK" and not each.predicate

    count = sum(is_wait(each) for each in code.instructions)
    before = code.reachable(None, is_wait)
    findings = []
    for each in (code.instructions[i] for i in sorted(before)):
        if each.base == "EXIT":
            findings.append(f"{each} is reached without a wait for the kernel before")
        elif each.base in ACCESSES - allowed or each.base == "PREEXIT":
            findings.append(f"{each} comes before the wait for the kernel before")
    return count, findings


JUDGES = dict(zip(RULES, (judge_wgmma, judge_registers, judge_bulk_copies)))  # of the paths


def judge(lines):
    """(function, rule, findings) of each function to which a rule applies; then, per rule, how
    often it applied, as a Counter."""
    counts = collections.Counter()
    verdicts = []
    for name, instructions in functions(lines):
        opcodes = {each.base for each in instructions}
        if ONE_ROUND in name:
            count, findings = judge_loads(instructions)
            counts["loads"] += count
            if count:
                verdicts.append((name, "loads", findings))
        allowed = next((early for part, early in EARLY.items() if part in name), None)
        waits = allowed is not None or opcodes & {"ACQBULK", "PREEXIT"}
        if not waits and not opcodes & {"HGMMA", "USETMAXREG", "UBLKCP"}:
            continue
        try:
            code = Code(instructions)
        except ValueError as error:
            verdicts.append((name, "every path", [str(error)]))
            continue
        for rule, judge_rule in JUDGES.items():
            count, findings = judge_rule(code)
            counts[rule] += count
            if count:
                verdicts.append((name, rule, findings))
        if waits:
            count, findings = judge_wait(code, allowed or set())
            counts["wait"] += count
            verdicts.append((name, "wait", findings))
    return verdicts, counts
